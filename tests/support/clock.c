/* The time of day as a test wants it: preloaded into a process, adds an offset that the test may change while the
 * process runs. The monotonic clock stays as it is.
 *
 * LEASEHOLD_CLOCK names a file that holds the offset: microseconds, 64 bits, in this machine's byte order. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *name = getenv("LEASEHOLD_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t us = now->tv_sec * 1000000LL + now->tv_nsec / 1000 + *offset;
    *now = (struct timespec){ .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 + now->tv_nsec % 1000 };
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (!failed) *now = (struct timeval){ .tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000 };
    return failed;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

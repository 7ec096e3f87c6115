/* Host names as a test wants them: preloaded into a process, answers for the names that it is given and passes all others on.
 *
 * LEASEHOLD_HOSTS is a list such as `db.test=127.0.0.9,127.0.0.1 slow.test=`: the addresses of a name in the order in which they are
 * answered; a name without addresses is answered after 8 seconds, with an error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int resolver(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* The addresses of `name`, or NULL. */
static const char *addresses_of(const char *name) {
    size_t length = strlen(name);
    for (const char *entry = getenv("LEASEHOLD_HOSTS"); entry && *entry;) {
        if (!strncmp(entry, name, length) && entry[length] == '=') return entry + length + 1;
        entry = strchr(entry, ' ');
        if (entry) entry++;
    }
    return NULL;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    resolver *system = (resolver *)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *rest = name ? addresses_of(name) : NULL;
    if (!rest) return system(name, service, hints, found);
    *found = NULL;
    while (*rest && *rest != ' ') {
        char address[64] = {0};
        size_t length = strcspn(rest, ", ");
        if (length >= sizeof address) return EAI_FAIL;
        memcpy(address, rest, length);
        struct addrinfo *last = NULL;
        int failed = system(address, service, hints, &last);
        if (failed) return failed;
        struct addrinfo **end = found;
        while (*end) end = &(*end)->ai_next;
        *end = last;
        rest += length + (rest[length] == ',');
    }
    if (*found) return 0;
    sleep(8);
    return EAI_AGAIN;
}

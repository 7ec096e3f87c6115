"""A worker of the mixed fleet that locks with a library for Python; see run.py for what all workers do."""

import argparse
import sys
import threading
import time

import pottery
import redis
import redis_lock
import redlock

parser = argparse.ArgumentParser()
for option in ("library", "prefix", "name", "log"):
    parser.add_argument(f"--{option}")
for option in ("port", "seconds", "hold-ms", "retry-ms", "lease-ms"):
    parser.add_argument(f"--{option}", type=int)
options = parser.parse_args()
# Some libraries block in BLPOP for longer than the default timeout.
client = redis.Redis(port=options.port, socket_timeout=None)
key = options.prefix + options.name
lease = options.lease_ms / 1000
# What the library reported on its own, such as an exception in one of its threads.
reported = []
threading.excepthook = lambda failure: reported.append(f"{failure.exc_type.__name__} in a thread")


class RedisPy:
    """redis.lock.Lock"""

    def __init__(self):
        sleep = options.retry_ms / 1000 if options.retry_ms else 0.1
        self.lock = client.lock(key, timeout=lease, sleep=sleep)

    def acquire(self):
        return self.lock.acquire()

    def release(self):
        return self.lock.release()

    def is_held(self):
        return self.lock.owned()


class RedlockPy:
    """redlock.Redlock"""

    def __init__(self):
        retry = options.retry_ms / 1000 if options.retry_ms else None
        self.manager = redlock.Redlock([client], retry_delay=retry)

    def acquire(self):
        self.lock = self.manager.lock(key, options.lease_ms)
        return bool(self.lock)

    def release(self):
        return self.manager.unlock(self.lock)

    is_held = None


class PythonRedisLock:
    """redis_lock.Lock, which makes its key from "lock:" and the name, and renews"""

    def __init__(self):
        assert options.prefix == "lock:"
        self.lock = redis_lock.Lock(client, options.name, expire=max(1, round(lease)), auto_renewal=True)

    def acquire(self):
        return self.lock.acquire()

    def release(self):
        return self.lock.release()

    def is_held(self):
        return self.lock._held


class Pottery:
    """pottery.Redlock, which makes its key from "redlock:" and the name"""

    def __init__(self):
        assert options.prefix == "redlock:"
        self.lock = pottery.Redlock(key=options.name, masters={client}, auto_release_time=lease)

    def acquire(self):
        return self.lock.acquire()

    def release(self):
        return self.lock.release()

    def is_held(self):
        return self.lock.locked() > 0


LIBRARIES = {
    "redis-py": RedisPy, "redlock-py": RedlockPy, "python-redis-lock": PythonRedisLock, "pottery": Pottery,
}


def now_us():
    return time.time_ns() // 1000


def sections():
    end, lock = time.monotonic() + options.seconds, LIBRARIES[options.library]()
    with open(options.log, "w") as log:
        while time.monotonic() < end:
            if not lock.acquire():
                continue
            start, count = now_us(), int(client.get("counter") or 0)
            time.sleep(options.hold_ms / 1000)
            client.set("counter", count + 1)
            log.write(f"{start} {now_us()}\n")
            lock.release()


def hold():
    lock = LIBRARIES[options.library]()
    while not lock.acquire():
        pass
    print("held", flush=True)
    sys.stdin.readline()
    print("; ".join(reported) or "nothing", flush=True)
    print("no such call" if lock.is_held is None else str(lock.is_held()), flush=True)
    try:
        print(f"ok, {lock.release()}", flush=True)
    except Exception as error:
        print(f"raises {type(error).__name__}: {error}", flush=True)


sections() if options.seconds else hold()

"""The lock of redis-py, with its defaults: a sleep of 0.1 s between attempts.

redis_py.py PORT PAIRS THREADS SECONDS prints the median time of a lock and its release in microseconds, the turns per second of all
threads, and the longest wait of any in milliseconds.
"""

import statistics
import sys
import threading
import time

import redis

port, pairs, threads, seconds = map(int, sys.argv[1:])
client = redis.Redis(port=port)


def turn(name, patience=None):
    """How long the lock was waited for, or None if that was too long."""
    asked = time.perf_counter()
    lock = client.lock(name, timeout=30)
    if not lock.acquire(blocking_timeout=patience):
        return None
    waited = time.perf_counter() - asked
    lock.release()
    return waited


def alone():
    times = []
    for _ in range(pairs):
        started = time.perf_counter()
        turn("python:alone")
        times.append(time.perf_counter() - started)
    return statistics.median(times[100:]) * 1e6


def together():
    end = time.perf_counter() + seconds
    done, unfinished = [], []

    def contend():
        while (left := end - time.perf_counter()) > 0:
            asked = time.perf_counter()
            waited = turn("python:wanted", left)
            if waited is None:
                unfinished.append(time.perf_counter() - asked)
            else:
                done.append(waited)

    workers = [threading.Thread(target=contend) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return len(done) / seconds, max(done + unfinished) * 1e3


print(alone(), *together())

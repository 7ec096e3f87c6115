"""Runs fleets of workers that lock the same key with different libraries, and reports what each library does when it loses its lease.

A worker of a fleet locks, reads a counter, holds the lock for a while, writes the counter plus one, records when this section
began and ended, and unlocks, until the time is over. Afterwards the counter must equal the number of sections, and no two of
them may overlap. All libraries follow the recipe in the Redis documentation, but three of them add a prefix of their own to the
key, which the others are given.

One worker per library shows what the library does when it loses its lease, in two cases: its key is deleted, or it is stopped
for longer than its lease. In both, another client takes the lock. Then the worker reports what the library has reported on its
own, what it answers when asked whether it holds the lock, and what it does when it unlocks.

Exits with status 1 if the counter is wrong, sections overlap, a worker fails, or another client's lock is released.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis

HERE = Path(__file__).parent
NAME = "machine:42"

# For each prefix, the workers of other libraries, eight of them.
ANY_KEY = ["redis-py", "redlock-py", "redlock 4", "redlock 5", "rslock"]
FLEETS = {
    "lock:": [*ANY_KEY, "redis-py", "rslock", "python-redis-lock"],
    "mutex:": [*ANY_KEY, *["redis-semaphore"] * 3],
    "redlock:": [*ANY_KEY, *["pottery"] * 3],
}
PREFIXES = {"redis-semaphore": "mutex:", "pottery": "redlock:"}
PYTHON = ["redis-py", "redlock-py", "python-redis-lock", "pottery"]
RUST = ["leasehold", "rslock"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rust-worker", required=True)
parser.add_argument("--node-dir", required=True, help="where worker.mjs and node_modules are")
parser.add_argument("--seconds", type=int, default=20, help="for each fleet")
parser.add_argument("--hold-ms", type=int, default=5)
parser.add_argument("--retry-ms", type=int, default=10, help="0 for the default of each library")
parser.add_argument("--poll-ms", type=int, default=None, help="leasehold's poll interval, 0 for none; default: --retry-ms")
parser.add_argument("--only", choices=["fleets", "leases"])
options = parser.parse_args()
problems, workers_started = [], []


def server(directory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = os.environ.get("LEASEHOLD_REDIS_SERVER", "redis-server")
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    end = time.monotonic() + 10
    while True:
        try:
            client.ping()
            return process, client, port
        except redis.ConnectionError:
            if time.monotonic() > end:
                process.kill()
                sys.exit("the server does not answer")
            time.sleep(0.05)


def worker(library, **arguments):
    if library in RUST:
        program = [options.rust_worker]
    elif library in PYTHON:
        program = [sys.executable, str(HERE / "worker.py")]
    else:
        program = ["node", str(Path(options.node_dir) / "worker.mjs")]
    for name, value in {"library": library, "name": NAME, **arguments}.items():
        program += [f"--{name.replace('_', '-')}", str(value)]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers_started.append(process)
    return process


def fleet(prefix, foreign, client, port, directory):
    poll = options.retry_ms if options.poll_ms is None else options.poll_ms
    libraries = ["leasehold"] * 2 + foreign
    client.flushall()
    workers = []
    for number, library in enumerate(libraries):
        log = Path(directory) / f"log-{number}"
        log.unlink(missing_ok=True)
        workers.append((library, log, worker(
            library, prefix=prefix, port=port, log=log, seconds=options.seconds, hold_ms=options.hold_ms,
            retry_ms=poll if library == "leasehold" else options.retry_ms, lease_ms=10_000,
        )))
    sections, counts = [], []
    for number, (library, log, process) in enumerate(workers):
        try:
            process.communicate(timeout=options.seconds + 60)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.returncode != 0:
            problems.append(f"{prefix} {library} ended with {process.returncode}")
        own = [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []
        counts.append((library, len(own)))
        sections += [(start, end, f"{library} {number}") for start, end in own]
    sections.sort()
    overlaps = [(a, b) for a, b in zip(sections, sections[1:]) if b[0] < a[1]]
    counted = int(client.get("counter") or 0)
    if overlaps:
        problems.append(f"{prefix} {len(overlaps)} overlaps, the first: {overlaps[0]}")
    if counted != len(sections):
        problems.append(f"{prefix} the counter is {counted} after {len(sections)} sections")
    left = sorted(key.decode() for key in client.keys("*") if not key.endswith(b":fence") and key != b"counter")
    print(f"\nfleet {prefix}{NAME}, {options.seconds} s, hold {options.hold_ms} ms, retry "
          f"{options.retry_ms or 'default'} ms, poll interval {poll or 'none'} ms")
    share = len(sections) / len(libraries)
    for library, count in counts:
        print(f"  {library:18} {count:6}  share {count / share:5.2f}")
    print(f"  {len(sections)} sections, {len(overlaps)} overlaps, counter {counted}, keys left {left}")


def take(value, key, client):
    """Takes the lock as another client that follows the recipe would."""
    end = time.monotonic() + 10
    while not client.set(key, value, nx=True, px=60_000):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def lease(library, fault, client, port):
    client.flushall()
    prefix = PREFIXES.get(library, "lock:")
    key, lease_ms = prefix + NAME, 1000
    process = worker(library, prefix=prefix, port=port, seconds=0, lease_ms=lease_ms)
    line = process.stdout.readline().strip()
    if line != "held":
        problems.append(f"{library} did not get a free lock: {line!r}")
        process.kill()
        return
    if fault == "deleted":
        client.delete(key)
        taken = take("somebody else", key, client)
        # Libraries that renew have time to find out.
        time.sleep(5 * lease_ms / 1000)
    else:
        process.send_signal(signal.SIGSTOP)
        taken = take("somebody else", key, client)
        process.send_signal(signal.SIGCONT)
        time.sleep(lease_ms / 1000)
    if not taken:
        problems.append(f"{library}, {fault}: the lease did not end")
    try:
        answer, _ = process.communicate("\n", timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        answer, _ = process.communicate()
        problems.append(f"{library}, {fault}: does not come to an end")
    reported, is_held, release = (answer.splitlines() + [""] * 3)[:3]
    intact = client.get(key) == b"somebody else"
    if not intact:
        problems.append(f"{library}, {fault}: the lock of another client was released")
    print(f"  {library:18} {fault:8} reported: {reported} | asked: {is_held} | unlock: {release[:110]}"
          f"{'' if intact else ' | THE LOCK OF SOMEBODY ELSE IS GONE'}")


def main():
    directory = tempfile.mkdtemp(prefix="mixed-fleet-")
    process, client, port = server(directory)
    try:
        if options.only != "leases":
            for prefix, foreign in FLEETS.items():
                fleet(prefix, foreign, client, port, directory)
        if options.only != "fleets":
            print("\nlost leases: the key is deleted, or the worker is stopped for longer than its lease")
            for library in dict.fromkeys(["leasehold", *sum(FLEETS.values(), [])]):
                for fault in ("deleted", "stopped"):
                    lease(library, fault, client, port)
    finally:
        for started in workers_started:
            started.kill()
        process.terminate()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


sys.stdout.reconfigure(line_buffering=True)
sys.exit(main())

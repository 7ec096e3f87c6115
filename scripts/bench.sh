#!/usr/bin/env bash
# Runs every benchmark, one after another, and keeps their output under target/bench; benches/README.md says how it becomes a picture.
#
# Needs cargo, valgrind, and the servers that scripts/install.sh installs; every benchmark starts its own. Takes about 40 minutes, during
# which the machine should do nothing else. Arguments, if any, name the benchmarks to run.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p target/bench
{
    date -u +%F
    rustc --version
    "${LEASEHOLD_REDIS_SERVER:-redis-server}" --version
    uname -sr
    grep -m 1 'model name' /proc/cpuinfo || true
    printf '%s processors\n' "$(nproc)"
} | tee target/bench/machine.txt

cargo bench -p leasehold-benches --no-run
[[ $# -gt 0 ]] || set -- uncontended instructions contended semaphores guards marketplace clients redlock stores micro
for name in "$@"; do
    printf '\n== %s\n' "$name"
    cargo bench --quiet -p leasehold-benches --bench "$name" | tee "target/bench/$name.txt"
done

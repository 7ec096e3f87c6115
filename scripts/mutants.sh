#!/usr/bin/env bash
# Whether a test fails if an operator, a condition or an answer is another one in the code that decides who holds: leases, hand-over, the
# ledger, and what is planned for etcd and ZooKeeper. `scripts/mutants.sh [FILE ...]`, such as `scripts/mutants.sh src/lease/held.rs`.
#
# Builds cargo-mutants under target/tools, if it is not installed. Each of some 1500 changes is compiled and runs the tests that need no
# server but those of etcd and ZooKeeper in memory, which takes half a minute to two minutes: name a file. Those that no test has noticed
# are in target/mutants.out/missed.txt; many of them in src/lease are noticed by tests with servers.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/tool.sh
source scripts/tool.sh
tool cargo-mutants 27

files=("$@")
[[ ${#files[@]} -gt 0 ]] ||
    files=('src/lease/**' 'src/handover/**' src/backend/ledger.rs 'src/backend/ledger/**' src/backend/{etcd,zookeeper}/plan.rs)
chosen=()
for file in "${files[@]}"; do
    chosen+=(--file "$file")
done
tests=(--lib)
for test in closing_memory handover_memory releases_memory holders mutex_memory observer reentrant_memory renewals_memory semaphore_memory store_faults_memory; do
    tests+=(--test "$test")
done
# What is compiled only for tests of other kinds cannot be noticed by these.
cargo mutants --package leasehold --features sqlite,etcd,zookeeper --output target "${chosen[@]}" \
    --exclude '**/fuzzing.rs' --exclude '**/random.rs' --exclude '**/interleavings/**' --exclude-re 'planted|begin_anew' \
    --timeout 180 -- "${tests[@]}"

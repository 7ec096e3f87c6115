#!/usr/bin/env bash
# Starts an etcd server of its own, runs a command in whose arguments `URL` stands for the server's URL, and stops the server.
#
#   scripts/with_etcd.sh cargo run --features etcd --example merge -- --url URL
set -euo pipefail

die() {
    printf 'scripts/with_etcd.sh: %s\n' "$*" >&2
    exit 1
}

[[ $# -gt 0 ]] || die "which command?"
bin=${LEASEHOLD_ETCD_BIN:-$(dirname "$(command -v etcd || echo /missing/etcd)")}
[[ -x $bin/etcd && -x $bin/etcdctl ]] || die "etcd is missing: see scripts/install.sh"

dir=$(mktemp -d)
server=
stop() {
    [[ -z $server ]] || { kill -INT "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT
for _ in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 10000))
    peer=http://127.0.0.1:$((port + 1))
    "$bin/etcd" --data-dir "$dir/data" --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" 2>"$dir/log" &
    server=$!
    # Another program may have the port: then it ends at once.
    while kill -0 "$server" 2>/dev/null; do
        if ETCDCTL_API=3 "$bin/etcdctl" --endpoints "127.0.0.1:$port" endpoint health >/dev/null 2>&1; then
            url="etcd://127.0.0.1:$port"
            "${@//URL/$url}"
            exit
        fi
        sleep 0.1
    done
    rm -rf "$dir/data"
done
cat "$dir/log" >&2
die "the server does not start"

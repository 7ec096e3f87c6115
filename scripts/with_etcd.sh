#!/usr/bin/env bash
# Starts an etcd server of its own, runs a command in whose arguments `URL` stands for the server's URL, and stops the server.
#
#   scripts/with_etcd.sh cargo run --features etcd --example merge -- --url URL
set -euo pipefail
# shellcheck source=scripts/with_server.sh
source "$(dirname "$0")/with_server.sh"

bin=${LEASEHOLD_ETCD_BIN:-$(dirname "$(command -v etcd || echo /missing/etcd)")}
[[ -x $bin/etcd && -x $bin/etcdctl ]] || die "etcd is missing: see scripts/install.sh"

start() {
    local peer=http://127.0.0.1:$((port + 1))
    rm -rf "$dir/data"
    exec "$bin/etcd" --data-dir "$dir/data" --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer"
}

is_ready() {
    ETCDCTL_API=3 "$bin/etcdctl" --endpoints "127.0.0.1:$port" endpoint health >/dev/null 2>&1
}

stop_signal=INT
serve "etcd://127.0.0.1:PORT" "$@"

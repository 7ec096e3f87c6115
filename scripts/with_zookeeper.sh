#!/usr/bin/env bash
# Starts a ZooKeeper server of its own, runs a command in whose arguments `URL` stands for the server's URL, and stops the server.
#
#   scripts/with_zookeeper.sh cargo run --features zookeeper --example merge -- --url URL
set -euo pipefail

die() {
    printf 'scripts/with_zookeeper.sh: %s\n' "$*" >&2
    exit 1
}

[[ $# -gt 0 ]] || die "which command?"
class_path=${LEASEHOLD_ZOOKEEPER_CLASSPATH:-/usr/share/java/zookeeper.jar}
command -v java >/dev/null && [[ -n ${LEASEHOLD_ZOOKEEPER_CLASSPATH:-} || -f $class_path ]] ||
    die "ZooKeeper is missing: see scripts/install.sh"

dir=$(mktemp -d)
server=
stop() {
    [[ -z $server ]] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT
for _ in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 10000))
    cat >"$dir/zoo.cfg" <<CONFIG
tickTime=2000
dataDir=$dir/data
clientPort=$port
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
CONFIG
    java -XX:+UseSerialGC -Xmx256m -cp "$dir:$class_path" \
        org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/log" 2>&1 &
    server=$!
    # Another program may have the port: then it ends at once.
    while kill -0 "$server" 2>/dev/null; do
        if [[ $({ printf srvr >&3 && timeout 1 cat <&3; } 3<>"/dev/tcp/127.0.0.1/$port" 2>/dev/null) == *Mode:* ]]; then
            url="zookeeper://127.0.0.1:$port"
            "${@//URL/$url}"
            exit
        fi 2>/dev/null
        sleep 0.1
    done
done
cat "$dir/log" >&2
die "the server does not start"

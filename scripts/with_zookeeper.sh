#!/usr/bin/env bash
# Starts a ZooKeeper server of its own, runs a command in whose arguments `URL` stands for the server's URL, and stops the server.
#
#   scripts/with_zookeeper.sh cargo run --features zookeeper --example merge -- --url URL
set -euo pipefail
# shellcheck source=scripts/with_server.sh
source "$(dirname "$0")/with_server.sh"

class_path=${LEASEHOLD_ZOOKEEPER_CLASSPATH:-/usr/share/java/zookeeper.jar}
command -v java >/dev/null && [[ -n ${LEASEHOLD_ZOOKEEPER_CLASSPATH:-} || -f $class_path ]] ||
    die "ZooKeeper is missing: see scripts/install.sh"

start() {
    cat >"$dir/zoo.cfg" <<CONFIG
tickTime=2000
dataDir=$dir/data
clientPort=$port
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
CONFIG
    exec java -XX:+UseSerialGC -Xmx256m -cp "$dir:$class_path" org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg"
}

is_ready() {
    [[ $({ printf srvr >&3 && timeout 1 cat <&3; } 3<>"/dev/tcp/127.0.0.1/$port") == *Mode:* ]]
} 2>/dev/null

serve "zookeeper://127.0.0.1:PORT" "$@"

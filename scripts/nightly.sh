#!/usr/bin/env bash
# What takes too long for every change.
set -euo pipefail
cd "$(dirname "$0")/.."

# Each store as a user of it alone compiles it, and each kind of TLS.
for set in redis-rs redis-rs,rustls sqlite postgres mysql etcd zookeeper fred,rustls postgres,mysql,etcd,zookeeper,native-tls postgres,mysql,etcd,zookeeper,rustls; do
    cargo clippy --quiet -p leasehold --lib --no-default-features --features "$set" -- -D warnings
done
scripts/deny.sh
scripts/book.sh
scripts/semver.sh
scripts/fuzz.sh
scripts/interleavings.sh 500
PROPTEST_CASES=256 cargo test -p leasehold-model --all-features
scripts/planted.sh

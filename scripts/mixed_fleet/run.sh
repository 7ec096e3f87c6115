#!/usr/bin/env bash
# Tests this crate alongside other libraries that lock on Redis: installs them in directories under target/, and runs run.py.
#
# Needs cargo, python3 with venv, node with npm, and a redis-server (or the program that LEASEHOLD_REDIS_SERVER names). The
# arguments are those of run.py: scripts/mixed_fleet/run.sh --help
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
place=$target/mixed_fleet
mkdir -p "$place/node"

[[ -d $place/python ]] || python3 -m venv "$place/python"
"$place/python/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
cp "$here/package.json" "$here/worker.mjs" "$place/node/"
(cd "$place/node" && npm install --silent --no-audit --no-fund)
cargo build --release -p leasehold-benches --example mixed_fleet_worker

exec "$place/python/bin/python" "$here/run.py" \
    --rust-worker "$target/release/examples/mixed_fleet_worker" --node-dir "$place/node" "$@"

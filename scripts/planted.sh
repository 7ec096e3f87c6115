#!/usr/bin/env bash
# Whether the torture harness would notice: builds the crate with deliberate mistakes in it (src/planted), of which the environment
# chooses one at run time, and runs the harness on each of them, and once more without any: `scripts/planted.sh [MISTAKE]`.
#
# Takes a quarter of an hour, and some minutes for the build, which is in target/planted.
set -euo pipefail
cd "$(dirname "$0")/.."

[[ $# -eq 0 ]] || export LEASEHOLD_PLANTED=$1
export RUSTFLAGS="${RUSTFLAGS:-} --cfg leasehold_planted" CARGO_TARGET_DIR=target/planted
# One after another: each has a machine of its own.
cargo test -p torture --test torture broken:: -- --nocapture --test-threads 1

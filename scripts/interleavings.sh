#!/usr/bin/env bash
# Whether the order in which threads reach the client's own state can break a promise (src/interleavings):
# `scripts/interleavings.sh [SCHEDULES [TEST]]`. Each test runs in so many orders (2000) drawn at random, and as many drawn by PCT.
#
# The orders depend on LEASEHOLD_SEED, which is printed. A test that fails prints its schedule; the same build replays it:
# `LEASEHOLD_SCHEDULE=... scripts/interleavings.sh 1 TEST`. The build is in target/interleavings.
set -euo pipefail
cd "$(dirname "$0")/.."

export LEASEHOLD_SCHEDULES=${1:-2000} LEASEHOLD_SEED=${LEASEHOLD_SEED:-$RANDOM}
export RUSTFLAGS="${RUSTFLAGS:-} --cfg leasehold_shuttle" CARGO_TARGET_DIR=target/interleavings
export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
printf 'scripts/interleavings.sh: LEASEHOLD_SEED=%s\n' "$LEASEHOLD_SEED"
cargo test -p leasehold --lib --no-default-features -- "${2:-interleavings::}"

#!/usr/bin/env bash
# What takes too long for every change.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deny.sh
scripts/book.sh
scripts/semver.sh
scripts/fuzz.sh
scripts/planted.sh

#!/usr/bin/env bash
# What is worth checking every night and takes too long for every change: beyond `.ci/run`, which the caller runs as well.
set -euo pipefail
cd "$(dirname "$0")/.."

# The book that is made of the guide, without a warning and without a dead link.
scripts/book.sh

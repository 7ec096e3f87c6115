#!/usr/bin/env bash
# Whether the public interface still allows what programs do with that of the last release, the newest tag `v*`.
#
# Builds cargo-semver-checks under target/tools, if it is not installed; that takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

release=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null) || {
    echo "scripts/semver.sh: there is no release to compare with"
    exit 0
}
# shellcheck source=scripts/tool.sh
source scripts/tool.sh
tool cargo-semver-checks 0.51
cargo semver-checks --package leasehold --all-features --baseline-rev "$release"

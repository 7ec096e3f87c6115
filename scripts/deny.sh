#!/usr/bin/env bash
# Licences, bans and sources of all dependencies, and known vulnerabilities where the list of them can be fetched (deny.toml).
#
# Builds cargo-deny under target/tools, if it is not installed; that takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/tool.sh
source scripts/tool.sh
tool cargo-deny 0.20

checks=(bans licenses sources)
if git ls-remote --quiet --heads https://github.com/rustsec/advisory-db >/dev/null 2>&1; then
    checks+=(advisories)
else
    echo "scripts/deny.sh: the list of advisories cannot be fetched from here: vulnerabilities are not looked for" >&2
fi
cargo deny check "${checks[@]}"

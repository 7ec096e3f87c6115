#!/usr/bin/env bash
# What the configurations of scripts/test.sh compile again because a dependency has fewer features there than in the whole workspace:
# a line for each, with the features that tests/dependencies/Cargo.toml has to name. Prints nothing if all is shared.
#
# `scripts/shared_features.sh ARGUMENT ...` takes the arguments of one configuration, such as `-p leasehold --features sqlite`.
set -euo pipefail
cd "$(dirname "$0")/.."

features() { # arguments of cargo
    cargo tree --quiet --prefix none --edges normal,dev,build --format '{p}|{f}' "$@" | sed 's/ ([^|]*)//g' | grep -v '^leasehold' | sort -u
}

# A package may be there with several sets of features, such as for macros and for the rest.
missing() { # arguments of cargo
    awk -F '|' '
        NR == FNR { seen[$0]; whole[$1] = whole[$1] " " $2; next }
        $1 in whole && !($0 in seen) { printf "%s: has %s, in the workspace%s\n", $1, $2 == "" ? "none" : $2, whole[$1] }
    ' <(features --workspace --all-features) <(features -p leasehold-dependencies "$@")
}

if [[ $# -gt 0 ]]; then
    missing "$@"
    exit
fi
# The build of each configuration in scripts/test.sh, without what chooses programs.
while read -r arguments; do
    # shellcheck disable=SC2086 # several words are meant
    missing $arguments | sed "s/\$/ ($arguments)/"
done <<'END'
-p leasehold-benches -p leasehold --all-features
-p leasehold --no-default-features --features redis-rs,conformance
-p leasehold-fork --no-default-features --features redis-rs
-p leasehold-tls --no-default-features --features redis-rs
-p leasehold --no-default-features --features sqlite,conformance
-p leasehold --no-default-features --features postgres,conformance
-p leasehold --no-default-features --features etcd,conformance
-p leasehold --no-default-features --features zookeeper,conformance
-p leasehold -p leasehold-model --no-default-features
END

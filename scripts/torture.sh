#!/usr/bin/env bash
# Runs every scenario of the torture harness on every store that can have its faults, one after another, and writes the page of guarantees
# from what they have shown: docs/internals/torture.md.
#
#   scripts/torture.sh [SECONDS [SEED [OPTION...]]]
#
# Each run takes SECONDS, 60 by default, and a little to end; there are about 60. Nothing else should run on the machine meanwhile; if it has
# to, add `--slack 1000 --workers 2`. The outcomes and, of each store, the report of `mixed` are kept in docs/internals/torture; everything
# else of a run is in target/torture. Outcomes with violations are not kept: the exit status is 1, and the last lines name the runs.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
seed=${2:-1}
options=("${@:3}")
kept=docs/internals/torture
program=target/release/torture

cargo build --release --quiet -p torture
mkdir -p "$kept"
failed=()
left_out=()
while read -r store scenario; do
    folder=target/torture/$store-$scenario
    rm -rf "$folder"
    status=0
    "$program" --store "$store" --scenario "$scenario" --seed "$seed" --seconds "$seconds" --report "$folder" \
        "${options[@]}" </dev/null || status=$?
    case $status in
        0)
            rm -f "$folder"/*.events
            cp "$folder/outcome.txt" "$kept/$store-$scenario.txt"
            [[ $scenario != mixed ]] || cp "$folder/report.html" "$kept/$store.html"
            ;;
        3) left_out+=("$store") ;;
        *) failed+=("$store, $scenario: see $folder") ;;
    esac
done < <("$program" list)
"$program" guarantees

if [[ ${#left_out[@]} -gt 0 ]]; then
    printf 'this machine does not have %s\n' "$(printf '%s\n' "${left_out[@]}" | sort -u | paste -sd ' ')"
fi
if [[ ${#failed[@]} -gt 0 ]]; then
    printf '%s\n' "${failed[@]}" >&2
    exit 1
fi

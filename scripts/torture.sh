#!/usr/bin/env bash
# Runs every scenario of the torture harness on every store that can have its faults, and writes the page of guarantees from what they
# have shown: docs/guide/guarantees.md.
#
#   scripts/torture.sh [SECONDS [SEED [OPTION...]]]
#
# Each run takes SECONDS, 60 by default, and a little to end; there are about 200. LEASEHOLD_RUNS of them are made at once, 1 by default.
# If that is more, or something else runs on the machine meanwhile, add `--slack 1000 --workers 2`. STORES, if set, are the names of those
# stores that are run, such as "etcd zookeeper".
#
# The outcomes are kept in docs/internals/torture, and of `mixed` on each store the report; everything else of a run is in target/torture.
# Outcomes with violations are not kept: the exit status is 1, and the last lines name the runs.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
seed=${2:-1}
options=("${@:3}")
kept=docs/internals/torture
program=target/release/torture

cargo build --release --quiet -p torture
mkdir -p "$kept"

# run STORE SCENARIO: its exit status is left beside its report.
run() {
    local folder=target/torture/$1-$2 status=0
    rm -rf "$folder"
    mkdir -p "$folder"
    "$program" --store "$1" --scenario "$2" --seed "$seed" --seconds "$seconds" --report "$folder" "${@:3}" \
        </dev/null >"$folder/output.txt" 2>&1 || status=$?
    echo "$status" >"$folder/status"
    printf '%s, %s: %s\n' "$1" "$2" "$(tail -n 1 "$folder/output.txt")"
}
export -f run
export program seed seconds

listed=()
while read -r store scenario; do
    [[ " ${STORES:-$store} " != *" $store "* ]] || listed+=("$store $scenario")
done < <("$program" list)
printf '%s\n' "${listed[@]}" |
    xargs -P "${LEASEHOLD_RUNS:-1}" -L 1 bash -c 'run "${@: -2}" "${@:1:$#-2}"' run "${options[@]}"

failed=()
left_out=()
for one in "${listed[@]}"; do
    read -r store scenario <<<"$one"
    folder=target/torture/$store-$scenario
    case $(<"$folder/status") in
        0)
            rm -f "$folder"/*.events
            cp "$folder/outcome.txt" "$kept/$store-$scenario.txt"
            [[ $scenario != mixed ]] || cp "$folder/report.html" "$kept/$store.html"
            ;;
        3) left_out+=("$store, $scenario") ;;
        *) failed+=("$store, $scenario: see $folder") ;;
    esac
done
"$program" guarantees

if [[ ${#left_out[@]} -gt 0 ]]; then
    printf 'this machine cannot run: %s\n' "${left_out[@]}"
fi
if [[ ${#failed[@]} -gt 0 ]]; then
    printf '%s\n' "${failed[@]}" >&2
    exit 1
fi

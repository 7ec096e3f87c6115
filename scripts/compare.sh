#!/usr/bin/env bash
# Whether this revision is slower than another one: runs the benchmarks of both in turns on this machine, and prints every figure of both,
# with ratios that are above 1 if this revision is better: `scripts/compare.sh REVISION [ROUNDS [BENCHMARK...]]`.
#
# Needs cargo and the servers that scripts/install.sh installs. Builds the other revision in target/compare, which takes as long as a first
# build. A round takes about 12 minutes, during which the machine should do nothing else; 3 are made unless told otherwise. Runs are shorter
# than those of scripts/bench.sh, because it is ratios that count. What was printed stays in target/compare.
set -euo pipefail
cd "$(dirname "$0")/.."

revision=${1:?which revision? see the first lines of this script}
rounds=${2:-3}
benchmarks=("${@:3}")
[[ ${#benchmarks[@]} -gt 0 ]] || benchmarks=(uncontended contended semaphores guards stores redlock)

folder=$PWD/target/compare
mkdir -p "$folder"
if [[ ! -d $folder/source ]]; then
    git worktree add --quiet --detach "$folder/source" "$revision"
else
    git -C "$folder/source" checkout --quiet --detach "$revision"
fi

# The path of a benchmark's program, after it was built in this folder.
program() { (cd "$1" && cargo bench --quiet -p leasehold-benches --bench "$2" --no-run --message-format json |
    sed -n 's/.*"name":"'"$2"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1); }

options() {
    case $1 in
        uncontended) echo --pairs 4000 --round 1000 ;;
        contended) echo --parts closed,memory --strategies via-store,leasehold --waiters 2,16,1000,10000 --window 1500 --longest-window 6000 ;;
        semaphores) echo --kinds counting,fair,passed-on --window 1000 --rounds 3 ;;
        guards) echo --hold 20 ;;
        stores) echo --pairs 400 --window 1000 --hold 6 ;;
        redlock) echo --pairs 3000 ;;
    esac
}

for benchmark in "${benchmarks[@]}"; do
    declare "old_$benchmark=$(unset CARGO_TARGET_DIR && program "$folder/source" "$benchmark")"
    declare "new_$benchmark=$(program . "$benchmark")"
done
rm -rf "$folder/old" "$folder/new"
mkdir -p "$folder/old" "$folder/new"
for ((round = 1; round <= rounds; round++)); do
    for benchmark in "${benchmarks[@]}"; do
        # Who begins alternates.
        turns=(old new)
        ((round % 2)) || turns=(new old)
        for turn in "${turns[@]}"; do
            program=${turn}_$benchmark
            printf '%s: %s, round %s\n' "$(date -u +%T)" "$program" "$round" >&2
            # shellcheck disable=SC2046
            "${!program}" --bench $(options "$benchmark") >"$folder/$turn/$benchmark.$round.txt"
        done
    done
done
cargo bench --quiet -p leasehold-benches --bench compare -- "$folder/old" "$folder/new"

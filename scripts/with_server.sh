# shellcheck shell=bash
# For the scripts that run a command with a server of its own: serves until the command has ended, and removes what the server leaves. They
# source this file and then say `serve`.

die() {
    printf 'scripts/%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

[[ $# -gt 0 ]] || die "which command?"

# What the server writes goes here.
dir=$(mktemp -d)
# How it is told to end.
stop_signal=TERM

server=
stop() {
    [[ -z $server ]] || { kill -"$stop_signal" "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT

# Has `start` become a server on `$port` and, when `is_ready` succeeds, runs a command in whose arguments `URL` stands for the server's URL.
serve() { # that URL, with `PORT` for the port; the command
    for _ in 1 2 3 4 5; do
        port=$((20000 + RANDOM % 10000))
        start >"$dir/log" 2>&1 &
        server=$!
        # Another program may have the port: then it ends.
        while kill -0 "$server" 2>/dev/null; do
            if is_ready; then
                local url=${1//PORT/$port}
                shift
                "${@//URL/$url}"
                exit
            fi
            sleep 0.1
        done
    done
    cat "$dir/log" >&2
    die "the server does not start"
}

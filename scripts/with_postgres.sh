#!/usr/bin/env bash
# Starts a temporary PostgreSQL server, runs a command with `URL` in its arguments replaced by the server's URL, and stops the server.
#
#   scripts/with_postgres.sh cargo run --features postgres --example merge -- --url URL
set -euo pipefail

die() {
    printf 'scripts/with_postgres.sh: %s\n' "$*" >&2
    exit 1
}

[[ $# -gt 0 ]] || die "which command?"
bin=${LEASEHOLD_POSTGRES_BIN:-$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n 1 || true)}
bin=${bin:-$(dirname "$(command -v initdb || echo /missing/initdb)")}
[[ -x $bin/initdb ]] || die "PostgreSQL is missing: see scripts/install.sh"

# The server refuses to run as root.
as_owner=()
dir=$(mktemp -d)
if [[ $EUID -eq 0 ]]; then
    chown postgres "$dir"
    as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi
${as_owner[@]+"${as_owner[@]}"} "$bin/initdb" --pgdata "$dir/data" --username=leasehold --auth=trust --encoding=UTF8 --locale=C --no-sync \
    >"$dir/initdb.log"

server=
stop() {
    [[ -z $server ]] || { kill -INT "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT
for _ in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 10000))
    ${as_owner[@]+"${as_owner[@]}"} "$bin/postgres" -D "$dir/data" -p "$port" -k "$dir" -c listen_addresses=127.0.0.1 2>"$dir/log" &
    server=$!
    # Another program may use the port: then the server ends at once.
    while kill -0 "$server" 2>/dev/null; do
        if "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" && grep -q ready "$dir/data/postmaster.pid"; then
            url="postgres://leasehold@127.0.0.1:$port/postgres"
            "${@//URL/$url}"
            exit
        fi
        sleep 0.1
    done
done
cat "$dir/log" >&2
die "the server does not start"

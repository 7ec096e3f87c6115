#!/usr/bin/env bash
# Starts a temporary PostgreSQL server, runs a command with `URL` in its arguments replaced by the server's URL, and stops the server.
#
#   scripts/with_postgres.sh cargo run --features postgres --example merge -- --url URL
set -euo pipefail
# shellcheck source=scripts/with_server.sh
source "$(dirname "$0")/with_server.sh"

bin=${LEASEHOLD_POSTGRES_BIN:-$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n 1 || true)}
bin=${bin:-$(dirname "$(command -v initdb || echo /missing/initdb)")}
[[ -x $bin/initdb ]] || die "PostgreSQL is missing: see scripts/install.sh"

# The server refuses to run as root.
as_owner=()
if [[ $EUID -eq 0 ]]; then
    chown postgres "$dir"
    as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi
${as_owner[@]+"${as_owner[@]}"} "$bin/initdb" --pgdata "$dir/data" --username=leasehold --auth=trust --encoding=UTF8 --locale=C --no-sync \
    >"$dir/initdb.log"

start() {
    exec ${as_owner[@]+"${as_owner[@]}"} "$bin/postgres" -D "$dir/data" -p "$port" -k "$dir" -c listen_addresses=127.0.0.1
}

is_ready() {
    "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" && grep -q ready "$dir/data/postmaster.pid"
}

stop_signal=INT
serve "postgres://leasehold@127.0.0.1:PORT/postgres" "$@"

#!/usr/bin/env bash
# Starts a MariaDB or MySQL server of its own, runs a command in whose arguments `URL` stands for the server's URL, and stops the server.
#
#   scripts/with_mysql.sh cargo run --features mysql --example merge -- --url URL
set -euo pipefail
# shellcheck source=scripts/with_server.sh
source "$(dirname "$0")/with_server.sh"

PATH=$PATH:/usr/sbin:/usr/local/sbin
server_program=${LEASEHOLD_MYSQL_SERVER:-$(command -v mariadbd || command -v mysqld || true)}
[[ -x $server_program ]] || die "MariaDB is missing: see scripts/install.sh"

# A server removes the temporary files of others that it finds when it starts.
options=(--no-defaults "--datadir=$dir/data" "--tmpdir=$dir")
# The server runs as root only if it is told to.
[[ $EUID -ne 0 ]] || options+=(--user=root)

statements=("CREATE DATABASE leasehold;" "CREATE USER leasehold@'%' IDENTIFIED BY 'leasehold';" "GRANT ALL ON leasehold.* TO leasehold@'%';")
make_database() {
    local install_program
    if [[ $("$server_program" --version) == *MariaDB* ]]; then
        options+=(--innodb-log-file-size=8M)
        install_program=$(dirname "$server_program")/mariadb-install-db
        [[ -x $install_program ]] || install_program=$(command -v mariadb-install-db) || die "mariadb-install-db is missing"
        "$install_program" "${options[@]}" --auth-root-authentication-method=normal --skip-test-db &&
            printf '%s\n' "FLUSH PRIVILEGES;" "${statements[@]}" | "$server_program" "${options[@]}" --bootstrap
    else
        options+=(--innodb-redo-log-capacity=8M --mysqlx=OFF)
        printf '%s\n' "${statements[@]}" >"$dir/statements.sql" &&
            "$server_program" "${options[@]}" --initialize-insecure --init-file="$dir/statements.sql"
    fi
}
make_database >"$dir/install.log" 2>&1 || { cat "$dir/install.log" >&2; die "the database cannot be made"; }

start() {
    exec "$server_program" "${options[@]}" --port="$port" --bind-address=127.0.0.1 --skip-name-resolve --skip-log-bin \
        --socket="$dir/socket" --pid-file="$dir/pid"
}

is_ready() {
    grep -qs "ready for connections" "$dir/log"
}

serve "mysql://leasehold:leasehold@127.0.0.1:PORT/leasehold" "$@"

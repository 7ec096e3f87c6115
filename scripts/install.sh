#!/usr/bin/env bash
# Installs the servers that the tests start, and the headers of OpenSSL for the feature native-tls, on Debian and Ubuntu. What is there is
# left as it is, and no service is started.
#
# | server | found by | or named by |
# |---|---|---|
# | Redis 6.2 or later, or Valkey | `redis-server`, `valkey-server` | LEASEHOLD_REDIS_SERVER, a program |
# | PostgreSQL 12 or later | Debian's directories, `initdb` | LEASEHOLD_POSTGRES_BIN, the directory of `initdb` and `postgres` |
# | PgBouncer | `pgbouncer` | |
# | etcd 3.4 or later | `etcd`, `etcdctl` | LEASEHOLD_ETCD_BIN, the directory of both |
# | ZooKeeper 3.5 or later, and Java | `/usr/share/java/zookeeper.jar` | LEASEHOLD_ZOOKEEPER_CLASSPATH, what `java` needs to find it |
# | the program `sqlite3`, for the commands of the guide | `sqlite3` | |
# | tmux, for the tests of the command line | `tmux` | |
# | MariaDB 10.5 or later, or MySQL 8.0 or later | `mariadbd`, `mysqld` | LEASEHOLD_MYSQL_SERVER, a program |
set -euo pipefail

die() {
    printf 'scripts/install.sh: %s\n' "$*" >&2
    exit 1
}

have() { PATH=$PATH:/usr/sbin:/usr/local/sbin command -v "$@" >/dev/null; }

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "installing ${missing[*]} needs root or sudo: install them by hand and run this again"
    fi
}

# A package starts its service, which nobody asked for.
stop_service() { # name
    if [[ -d /run/systemd/system ]]; then
        as_root systemctl disable --now "$1.service"
    elif [[ -x /etc/init.d/$1 ]]; then
        as_root "/etc/init.d/$1" stop
    fi
}

named() { # variable, the program that it names
    [[ -z ${!1:-} || -x $2 ]] || die "$1 names ${!1}, where there is no $(basename "$2")"
    [[ -n ${!1:-} ]]
}

have_redis() { named LEASEHOLD_REDIS_SERVER "${LEASEHOLD_REDIS_SERVER:-}" || have redis-server || have valkey-server; }
have_postgres() {
    named LEASEHOLD_POSTGRES_BIN "${LEASEHOLD_POSTGRES_BIN:-}/initdb" ||
        compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || have initdb
}
have_zookeeper() { have java && [[ -n ${LEASEHOLD_ZOOKEEPER_CLASSPATH:-} || -e /usr/share/java/zookeeper.jar ]]; }
have_mysql() {
    named LEASEHOLD_MYSQL_SERVER "${LEASEHOLD_MYSQL_SERVER:-}" || have mariadbd || have mysqld
}
have_openssl() {
    [[ $(uname -s) != Linux || -n ${OPENSSL_DIR:-}${OPENSSL_LIB_DIR:-} ]] || pkg-config --exists openssl 2>/dev/null
}

missing=()
have_redis || missing+=(redis-server)
have_postgres || missing+=(postgresql)
have pgbouncer || missing+=(pgbouncer)
have etcd || missing+=(etcd-server)
have etcdctl || missing+=(etcd-client)
have_zookeeper || missing+=(zookeeper default-jre-headless)
have_mysql || missing+=(mariadb-server)
have sqlite3 || missing+=(sqlite3)
have tmux || missing+=(tmux)
have_openssl || missing+=(libssl-dev pkg-config)
[[ ${#missing[@]} -gt 0 ]] || exit 0

command -v apt-get >/dev/null || die "missing, by their names on Debian: ${missing[*]}; install them with this system's package tool"
printf '\n== installing %s\n' "${missing[*]}"
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}")
as_root "${install[@]}" || {
    as_root apt-get update
    as_root "${install[@]}"
}
for package in "${missing[@]}"; do
    case $package in
        redis-server | postgresql | pgbouncer) stop_service "$package" ;;
        etcd-server) stop_service etcd ;;
        mariadb-server) stop_service mariadb ;;
    esac
done

#!/usr/bin/env bash
# Fetches MySQL's own server, which Debian 12 does not have, and prints the program, for LEASEHOLD_MYSQL_SERVER.
#
#   LEASEHOLD_MYSQL_SERVER=$(scripts/mysql_server.sh) cargo test --all-features --test mysql
#
# It is the one of Debian unstable, whatever its version is, with the libraries that it needs, in target/servers; nothing is installed.
# Needs x86-64 Linux, python3, and dpkg-deb. What is downloaded is checked against the digests in Debian's list.
set -euo pipefail
cd "$(dirname "$0")/.."
store=$PWD/target/servers/mysql

die() {
    printf 'scripts/mysql_server.sh: %s\n' "$*" >&2
    exit 1
}

fetch() { # directory
    python3 - "$1" <<'PYTHON'
import hashlib, lzma, pathlib, re, subprocess, sys, urllib.request

DEBIAN = "http://deb.debian.org/debian/"
# Of scripts that are not used here.
UNNEEDED = re.compile("perl|debconf|adduser|init-system-helpers")


def get(path):
    with urllib.request.urlopen(DEBIAN + path, timeout=120) as answer:
        return answer.read()


packages, provided = {}, {}
for paragraph in lzma.decompress(get("dists/sid/main/binary-amd64/Packages.xz")).decode().split("\n\n"):
    fields = dict(line.split(": ", 1) for line in paragraph.split("\n") if ": " in line and not line.startswith(" "))
    if "Package" in fields:
        packages[fields["Package"]] = fields
        for name in re.findall(r"[^\s,()]+(?=\s*(?:\(|,|$))", fields.get("Provides", "")):
            provided.setdefault(name, fields["Package"])

wanted, needed = ["mysql-server-core"], set()
while wanted:
    name = wanted.pop()
    name = name if name in packages else provided.get(name)
    if name is None or name in needed or UNNEEDED.match(name):
        continue
    needed.add(name)
    for field in ["Depends", "Pre-Depends"]:
        dependencies = packages[name].get(field, "").split(",")
        wanted += [re.split(r"[\s:(|]", dependency.strip())[0] for dependency in dependencies if dependency.strip()]

directory = pathlib.Path(sys.argv[1])
for name in sorted(needed):
    content = get(packages[name]["Filename"])
    if hashlib.sha256(content).hexdigest() != packages[name]["SHA256"]:
        sys.exit(f"{name} is not what Debian's list says")
    package = directory / "package.deb"
    package.write_bytes(content)
    subprocess.run(["dpkg-deb", "-x", package, directory], check=True)
    package.unlink()
PYTHON
}

if [[ ! -x $store/mysqld ]]; then
    [[ $(uname -sm) == "Linux x86_64" ]] || die "the packages are for x86-64 Linux"
    for program in python3 dpkg-deb; do
        command -v "$program" >/dev/null || die "$program is needed to fetch MySQL"
    done
    rm -rf "$store"
    mkdir -p "$store"
    fetch "$store" >&2 || die "MySQL cannot be fetched"
    # Its libraries are newer than the system's, and so is the loader that loads them.
    cat >"$store/mysqld" <<PROGRAM
#!/bin/sh
usr=$store/usr
exec \$usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --library-path \$usr/lib/x86_64-linux-gnu:\$usr/lib/mysql/private \$usr/sbin/mysqld "\$@" \\
    --basedir=\$usr --lc-messages-dir=\$usr/share/mysql --character-sets-dir=\$usr/share/mysql/charsets --secure-file-priv=NULL
PROGRAM
    chmod +x "$store/mysqld"
    "$store/mysqld" --no-defaults --version >/dev/null || die "MySQL does not start here"
fi
printf '%s\n' "$store/mysqld"

# shellcheck shell=bash
# To be sourced: `tool NAME VERSION` makes a subcommand of cargo available, built under target/tools if it is not installed.

tool() { # name, version
    PATH=$PWD/target/tools/bin:$PATH
    command -v "$1" >/dev/null || cargo install --quiet --locked --root target/tools --version "^$2" "$1"
}

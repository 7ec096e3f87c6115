#!/usr/bin/env bash
# Builds the guide into target/book, and checks that mdbook has no warning and that every link in the built pages leads to a file and an
# anchor that exist. `tests/docs` checks the links of the sources on every run of the tests, without mdbook.
#
# Installs mdbook into target/tools unless it is there or on the path, which takes some minutes. To read the guide: target/book/index.html.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.4.52
book=$PWD/target/book

if [[ -x target/tools/bin/mdbook ]]; then
    mdbook=target/tools/bin/mdbook
elif ! mdbook=$(command -v mdbook); then
    cargo install mdbook --version "$version" --locked --no-default-features --root target/tools
    mdbook=target/tools/bin/mdbook
fi

rm -rf "$book"
said=$("$mdbook" build docs 2>&1) || { printf '%s\n' "$said" >&2; exit 1; }
if grep -E '\[(WARN|ERROR)\]|^ *(WARN|ERROR) ' <<<"$said" >&2; then
    echo "scripts/book.sh: mdbook printed warnings" >&2
    exit 1
fi

# The links of a page, without those to other sites. The theme's own are in every page.
links_of() {
    grep -oE '(href|src)="[^"]*"' "$1" | sed -E 's/^[a-z]+="//; s/"$//' | grep -vE '^([a-z]+:|$)' | sort -u || true
}

dead=0
checked=0
while IFS= read -r page; do
    while IFS= read -r link; do
        file=${link%%#*}
        anchor=
        [[ $link != *"#"* ]] || anchor=${link#*#}
        target=$page
        [[ -z $file ]] || target=$(dirname "$page")/$file
        checked=$((checked + 1))
        if [[ ! -e $target ]]; then
            echo "dead: ${page#"$book"/}: $link" >&2
            dead=$((dead + 1))
        elif [[ -n $anchor && $target == *.html ]] && ! grep -qF "id=\"$anchor\"" "$target"; then
            echo "dead: ${page#"$book"/}: $link: there is no such anchor" >&2
            dead=$((dead + 1))
        fi
    done < <(links_of "$page")
# The first is for a server that has a page for what it does not find; the second is all pages in one, with the links of each.
done < <(find "$book" -name '*.html' ! -name 404.html ! -name print.html ! -name toc.html)

[[ $checked -gt 500 ]] || { echo "scripts/book.sh: only $checked links were found" >&2; exit 1; }
[[ $dead -eq 0 ]] || { echo "scripts/book.sh: $dead dead links" >&2; exit 1; }
echo "$book/index.html: $checked links, all alive"

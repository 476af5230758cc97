#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a book of README.md, the guides, the designs and the formats: target/book/index.html, which
# opens from disk. Fails if a page leads to a file that the book does not have.
#
# usage: scripts/docs.sh      (scripts/setup.sh docs installs mdbook)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly pages=target/book-pages book=$PWD/target/book
# In the order of reading; the other guides follow.
readonly guides=(getting-started command glossary durability sharing stores mount programs c)

# title PAGE
title() { sed -n '/^# /{s///p;q}' "$1"; }
chapter() { echo "$1[$(title "$2")]($2)"; }

# other_guides: those that `guides` does not name.
other_guides() {
    local page
    for page in docs/guide/*.md; do
        page=$(basename "$page" .md)
        [[ " ${guides[*]} " == *" $page "* ]] || echo "$page"
    done
}

contents() {
    echo '# Contents'
    echo
    chapter '' README.md
    printf '\n# Guides\n\n'
    local page
    for page in "${guides[@]}" $(other_guides); do chapter '- ' "docs/guide/$page.md"; done
    chapter '- ' docs/benchmarks.md
    printf '\n# Inside\n\n'
    for page in ARCHITECTURE.md docs/design/*.md; do chapter '- ' "$page"; done
    printf '\n# Formats\n\n'
    for page in docs/format/*.md; do chapter '- ' "$page"; done
    printf '\n# The project\n\n'
    for page in CONTRIBUTING.md SECURITY.md CHANGELOG.md; do chapter '- ' "$page"; done
}

# Only pages and pictures: mdbook copies whatever else lies beside its pages.
rm -rf "$pages" "$book"
mkdir -p "$pages"
cp --parents README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md LICENSE NOTICE \
    docs/benchmarks.md docs/services.html docs/{guide,design,format}/*.md docs/pictures/* "$pages"
# Marks of blocks that tests run, such as `sh checkout`, are not for highlighting.
sed -i 's/^```sh .*/```sh/' "$pages"/*.md "$pages"/docs/*/*.md
# The book has no sources: what names one keeps its name only.
sed -Ei 's/\[([^]]*)\]\((\.\.\/)*(crates|examples|fuzz|packaging|peers|scripts|xtask)[^)]*\)/\1/g' \
    "$pages"/*.md "$pages"/docs/*.md "$pages"/docs/*/*.md
contents >"$pages/SUMMARY.md"
cat >"$pages/book.toml" <<END
[book]
title = "Esker"
src = "."

[build]
build-dir = "$book"

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
no-section-label = true

[output.html.search]
limit-results = 20
END
mdbook build "$pages"
rm -rf "$pages"

broken=$(cd "$book" && grep -RoE --include=*.html '(href|src)="[^"#:]+["#]' . \
    | sed -E 's/^([^:]*):(href|src)="/\1 /; s/["#]$//' | sort -u | while read -r page target; do
        [ -e "$(dirname "$page")/$target" ] || echo "${page#./}: $target"
    done)
if [ -n "$broken" ]; then
    printf 'docs: %s\n' "these links lead nowhere:" "$broken" >&2
    exit 1
fi
echo "docs: $book/index.html"

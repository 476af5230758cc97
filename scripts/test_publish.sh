#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries to publish every crate, up to the upload, and looks at what would be uploaded: the licence, its
# notice, and every file that the sources include. Nothing is compiled.
#
# usage: scripts/test_publish.sh
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
say() { echo "test_publish: $*"; }

# What is not committed yet is tested, too.
CARGO_TARGET_DIR=$target cargo publish --workspace --dry-run --no-verify --locked --allow-dirty --quiet \
    2>"$target/log" || { cat "$target/log"; exit 1; }

# includes DIRECTORY: "SOURCE:PATH" of each file that a source includes. Tests, which end a source, and
# tests of documentation may use files of the repository.
includes() {
    find "$1" -name '*.rs' ! -path '*/tests/*' -exec awk '
        /cfg\(test\)/ { nextfile }
        /cfg\(doctest\)/ { getline; next }
        match($0, /include_(str|bytes)!\("[^"]*/) {
            path = substr($0, RSTART, RLENGTH)
            sub(/.*"/, "", path)
            print FILENAME ":" path
        }' {} +
}

crates=0
# cargo keeps copies of a crate in several places.
for package in $(find "$target" -name '*.crate' -printf '%f\t%p\n' | sort -u -k 1,1 | cut -f 2); do
    name=$(basename "$package" .crate)
    tar -xzf "$package" -C "$target"
    for file in LICENSE NOTICE README.md Cargo.toml; do
        [ -s "$target/$name/$file" ] || { say "$name has no $file"; exit 1; }
    done
    while IFS=: read -r source path; do
        [ -e "$(dirname "$source")/$path" ] \
            || { say "${source#"$target"/} includes $path, which is not in the crate"; exit 1; }
    done < <(includes "$target/$name/src")
    crates=$((crates + 1))
done
[ "$crates" -gt 0 ] || { say "cargo made no crate"; exit 1; }
say "$crates crates could be published"

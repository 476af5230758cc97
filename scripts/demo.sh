#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the main job on real files of this machine and checks the result byte by byte.
#
# usage: scripts/demo.sh [--keep]      (default: the store and the copies are removed at the end)
#
# A first job imports a real tree as one published snapshot. A second one, on top of it, adds and
# removes files. A third composes both with a snapshot of its own. Then: list, search, read back,
# export, and compare with the original. ESKER is the command (target/release/esker), ESKER_DEMO_DIR
# a directory to work in (a temporary one), ESKER_DEMO_TREES the trees to import.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/demo_steps.sh --keep "$@"
keep=$flag
cleanup() {
    [ $keep = yes ] || { chmod -R u+rwx "$work" && rm -rf "$work"; }
}
trap cleanup EXIT

# manifest DIR: a line for every entry: kind, mode, owner, size, links, time of files, target.
manifest() {
    (cd "$1" && find . -printf '%P %y %m %U:%G %s %n %T@ %l\n' | awk '
        # The size of a directory is the file system'"'"'s own, and so are its links.
        $2 == "d" { $5 = $6 = "-" } { print }' | sort)
}

chapter "Choose real files"
tree=$work/tree
mkdir "$tree"
mapfile -t sources < <(
    if [ -n "${ESKER_DEMO_TREES:-}" ]; then
        tr ' ' '\n' <<<"$ESKER_DEMO_TREES"
    else
        # Largest gains first; a bare machine has at least what Rust came with.
        for source in /usr/include /usr/share/{doc,man,perl,zoneinfo,info,i18n,vim,terminfo} \
            /usr/lib/python3* "$(rustc --print sysroot 2>/dev/null)/lib/rustlib"; do
            [ ! -d "$source" ] || echo "$source"
        done
    fi
)
files_max=60000
files=0
for source in "${sources[@]}"; do
    [ -d "$source" ] && [ "$files" -lt $files_max ] || continue
    mkdir -p "$tree$(dirname "$source")"
    cp -a --no-target-directory "$source" "$tree$source" 2>/dev/null || continue
    files=$(find "$tree" | wc -l)
    say "$source: $files entries by now"
done
[ "$files" -gt 0 ] || fail "found no files to import; set ESKER_DEMO_TREES"
# Real trees lack what breaks copies, so add it.
odd=$tree/odd
mkdir "$odd"
printf 'a name that is not UTF-8\n' >"$odd/$(printf 'caf\xe9')"
printf 'two names\n' >"$odd/first" && ln "$odd/first" "$odd/second"
ln -s nowhere "$odd/dangling"
mkfifo "$odd/pipe"
touch -d '2001-02-03 04:05:06.789012345' "$odd/old"
head -c 20000000 /dev/urandom >"$odd/large"
truncate -s 1G "$odd/sparse"
mkdir "$odd/empty" && chmod 2750 "$odd/empty"
files=$(find "$tree" | wc -l)
say "in all $files entries, $(du -sh --apparent-size "$tree" | cut -f1) (1 GiB of it a hole)"

chapter "Make a store, import the tree as one published snapshot"
run init
run import "$tree" base
run names

chapter "A second job works on top of it: it removes a tree, renames one, adds files"
top=$("$esker" ls base:/usr | sed -n 1p)
session=$("$esker" session begin --base base)
say "session ${session:0:9}…"
run rm -r "$session:/usr/$top"
run mv "$session:/odd" "$session:/strange"
run mkdir -p "$session:/results/run-2"
date | run put - "$session:/results/run-2/date"
run put Cargo.toml "$session:/results/run-2/"
run publish "$session" second

chapter "A third composes both with results of its own"
mkdir -p "$work/third/results/run-3"
seq 100000 >"$work/third/results/run-3/numbers"
run import "$work/third" third
run publish --base third --base second composed
run log

chapter "List, search, read back"
run ls -l composed:/
run ls -R composed:/results
run find composed:/ -type f -size +1M | head -5 || true
run find composed:/strange -name 'caf*'
say "sum of the numbers read back: $(run cat composed:/results/run-3/numbers | awk '{ s += $1 } END { printf "%.0f", s }')"
run diff base second --summarize
run du -H -d 1 composed:/

chapter "Merge the stack into one change set, and check everything"
run squash composed --as flat
run diff composed flat --summarize
if "$esker" verify --help >/dev/null 2>&1; then run verify; fi

chapter "Export and compare with the original, byte by byte"
run export base:/ "$work/base"
diff -r --no-dereference "$tree" "$work/base" >"$work/differences" 2>&1 || true
# diff cannot compare pipes and says so.
grep -v 'is a fifo while' "$work/differences" && fail "content differs"
diff <(manifest "$tree") <(manifest "$work/base") || fail "modes, owners, times or links differ"
[ "$work/base/odd/first" -ef "$work/base/odd/second" ] || fail "a hard link became two files"
say "content, names, modes, owners, times, links: all $files entries are the same"
run export flat:/ "$work/flat"
[ ! -e "$work/flat/usr/$top" ] || fail "what was removed is there"
cmp "$work/flat/strange/large" "$tree/odd/large" || fail "a renamed file differs"
cmp "$work/flat/results/run-3/numbers" "$work/third/results/run-3/numbers" || fail "a file differs"
say "the composed snapshot shows what the three jobs made"

chapter "How fast"
run bench create --store "$work/bench" --files 2000000
run bench stat --store "$work/bench" --operations 1000000
run bench list --store "$work/bench"

chapter "Where to look next"
if [ $keep = yes ]; then
    say "The store stays:       export ESKER_STORE=$ESKER_STORE"
else
    say "Keep the store:        scripts/demo.sh --keep"
fi
say "Commands:              target/release/esker --help; docs/guide/command.md"
say "How it works:          ARCHITECTURE.md, docs/format/"
say "Against rival engines: make compare"

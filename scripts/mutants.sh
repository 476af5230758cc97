#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reverts one mend after another and shows whether a test notices; see `make mutants`.
#
# usage: scripts/mutants.sh [SECONDS] [NAME...]     (default: 600 seconds for each, every mutant)
#
# A NAME may be a part of the names of several mutants.
#
# A mutant is a file crates/sim/mutants/*.patch: a sentence on the defect that it brings back, a line
# "Test: " with the arguments of `cargo test`, and the patch. It is applied to a copy of what is
# committed. A test that fails, or takes longer than it is given, kills the mutant: the simulator may
# take SECONDS (it reads ESKER_SOAK_SECONDS), other tests two minutes. A mutant that does not apply or
# build is an error: mend its patch.
# Exits 1 unless all mutants are killed.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
filters=("${@:2}")
[ $# -ge 2 ] || filters=("")
root=$PWD
tree=$root/target/mutants
# Cargo takes what it built of one tree for what it would build of the other, so each has its own.
export CARGO_TARGET_DIR=$root/target/mutants-build CARGO_TERM_COLOR=never ESKER_SOAK=1
export ESKER_SOAK_SECONDS=$seconds
# Nobody debugs these builds.
export CARGO_PROFILE_DEV_DEBUG=0
test_seconds=120

git worktree remove --force "$tree" 2>/dev/null
git worktree add --quiet --detach "$tree" HEAD || exit 2
trap 'git -C "$root" worktree remove --force "$tree"' EXIT

killed=0
survived=()
broken=()
# Those of one crate follow each other, so that few crates are built for each.
patches=$(for filter in "${filters[@]}"; do
    grep -H '^Test: ' "$root"/crates/sim/mutants/*"$filter"*.patch
done | sort -u -t: -k3 -k1,1 | cut -d: -f1)
for patch in $patches; do
    name=$(basename "$patch" .patch)
    read -ra arguments <<<"$(sed -n 's/^Test: //p' "$patch")"
    build=()
    for argument in "${arguments[@]}"; do
        [ "$argument" != -- ] || break
        build+=("$argument")
    done
    git -C "$tree" reset --quiet --hard
    start=$SECONDS
    if ! git -C "$tree" apply "$patch" ||
        ! (cd "$tree" && cargo test --quiet "${build[@]}" --no-run </dev/null); then
        broken+=("$name")
        echo "broken    $name"
        continue
    fi
    built=$((SECONDS - start))
    limit=$test_seconds
    # Twice the time: the simulator makes a failing history smaller.
    [ "${arguments[1]}" != esker-sim ] || limit=$((seconds * 2))
    output=$(cd "$tree" && timeout "$limit" cargo test "${arguments[@]}" </dev/null 2>&1)
    status=$?
    if ! grep -q '^running [1-9]' <<<"$output"; then
        broken+=("$name")
        echo "broken    $name: no such test"
    elif [ $status != 0 ]; then
        killed=$((killed + 1))
        echo "killed    $name ($((SECONDS - start - built)) s)"
    else
        survived+=("$name")
        echo "survived  $name"
    fi
done

echo "$killed killed, ${#survived[@]} survived, ${#broken[@]} broken"
[ ${#survived[@]} = 0 ] && [ ${#broken[@]} = 0 ]

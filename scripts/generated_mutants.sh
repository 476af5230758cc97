#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Changes the code on which durability rests, one small change after another, and shows the changes that
# no test of the crate notices. .cargo/mutants.toml names the files.
#
# usage: scripts/generated_mutants.sh MINUTES [PACKAGE [OPTION...]]
#
# An OPTION is one of `cargo mutants`, such as -F REGEX. Without a PACKAGE, each has half of the minutes.
# There are some three thousand changes and each takes a minute or two, so a run tests as many as fit,
# in random order. What is committed is tested, in a copy. Exits 1 if a test missed a change.
set -uo pipefail
cd "$(dirname "$0")/.."

minutes=${1:?usage: scripts/generated_mutants.sh MINUTES [PACKAGE [OPTION...]]}
packages=(${2:-esker-table esker-fs})
root=$PWD
tree=$root/target/generated-mutants
results=$root/target/generated-mutants-results
export CARGO_TARGET_DIR=$root/target/generated-mutants-build CARGO_TERM_COLOR=never

git worktree remove --force "$tree" 2>/dev/null
git worktree add --quiet --detach "$tree" HEAD || exit 2
trap 'git -C "$root" worktree remove --force "$tree"' EXIT
rm -rf "$results"
mkdir -p "$results"/{esker-table,esker-fs}

caught=0
missed=0
for package in "${packages[@]}"; do
    # Building what is not changed is not part of the minutes.
    (cd "$tree" && cargo test --quiet --profile mutants -p "$package" --no-run </dev/null) || exit 2
    status=0
    timeout --signal INT "$((minutes * 60 / ${#packages[@]}))" cargo mutants --dir "$tree" --in-place \
        --package "$package" --output "$results/$package" --config "$root/.cargo/mutants.toml" --shuffle \
        --colors never "${@:3}" </dev/null || status=$?
    case $status in
        # All caught, some missed, some too slow, or no time left.
        0 | 2 | 3 | 124) ;;
        *) exit "$status" ;;
    esac
    outcomes=$results/$package/mutants.out
    caught=$((caught + $(cat "$outcomes"/{caught,timeout}.txt | wc -l)))
    missed=$((missed + $(wc -l <"$outcomes/missed.txt")))
done
echo "$caught generated mutants caught, $missed missed"
[ "$missed" = 0 ]

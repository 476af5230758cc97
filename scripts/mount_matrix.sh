#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the suites of other projects and the crash campaigns in mounts of every mode, with few
# descriptors: pjdfstest, fsx, fio, git and SQLite.
#
# usage: scripts/mount_matrix.sh [FILTER]...      (default: the suites, crashes and inherited files)
#
# A mode is what the kernel does by itself (nothing, `--in-place always`, `--write-back`), or that its
# requests come by rings (`--transport uring`, where the kernel takes them), at one of the durabilities. FILTERs are names of tests, as `cargo test` takes them; tests that choose their mode
# themselves are left to `make test`. Prints a line a mode, and what failed. Exits 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."

# Descriptors that a test, its programs and its mounts may have open each.
readonly DESCRIPTORS=256

filters=("$@")
[ $# -gt 0 ] || filters=(suites::pjdfstest suites::fsx suites::fio suites::git suites::sqlite
    inherited:: mounts::what_was_synced)

tests=(cargo test --profile "${ESKER_SOAK_PROFILE:-dev}" -p esker-cli --features s3 --test main)
"${tests[@]}" --no-run </dev/null || exit
output=$(mktemp)
trap 'rm -f "$output"' EXIT

kernels=("" "--in-place always" "--write-back")
if grep -qs Y /sys/module/fuse/parameters/enable_uring; then
    kernels+=("--transport uring" "--transport uring --write-back")
else
    echo "matrix: no rings: echo Y > /sys/module/fuse/parameters/enable_uring"
fi
failed_modes=0
for durability in none async always; do
    for kernel in "${kernels[@]}"; do
        mode="--durability $durability${kernel:+ $kernel}"
        start=$SECONDS status=0
        (
            ulimit -n "$DESCRIPTORS"
            ESKER_TEST_MOUNT_OPTIONS=$mode "${tests[@]}" -- --test-threads 1 \
                --skip when_the_kernel "${filters[@]}"
        ) </dev/null >"$output" 2>&1 || status=$?
        read -r passed failed < <(awk -f scripts/test_tally.awk "$output")
        echo "matrix: $mode: $passed passed, $failed failed ($((SECONDS - start)) s)"
        [ $status = 0 ] && continue
        failed_modes=$((failed_modes + 1))
        sed -n '/^failures:/,$p' "$output"
    done
done
[ $failed_modes = 0 ]

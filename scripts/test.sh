#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks everything that a change must pass; see `make test`.
#
# Every phase runs even when an earlier one failed, so that one run shows all that is wrong. The
# last line is "N passed, N failed": every test of every binary counts as one, and so does each
# other phase. Exits 1 when anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."

# Seconds that each fuzz target runs.
readonly FUZZ_SECONDS=10

passed=0
failed=0
timings=()
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# phase NAME COMMAND...: runs COMMAND and keeps its time; returns its status.
phase() {
    local name=$1 start=$SECONDS status=0
    shift
    echo "== $name"
    "$@" </dev/null || status=$?
    timings+=("$(printf '%5d s  %s%s' $((SECONDS - start)) "$name" "$([ $status = 0 ] || echo ': FAILED')")")
    return $status
}

# check NAME COMMAND...: a phase that counts as one.
check() {
    if phase "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# What the tests build beyond the default: everything but MPI, of which there are two.
readonly FEATURES=s3,postgresql,mongodb,redis

# add_results STATUS: adds up what every test binary said in the output of cargo, which ended with
# STATUS.
add_results() {
    local tests_passed tests_failed
    read -r tests_passed tests_failed < <(awk -f scripts/test_tally.awk "$output")
    # What does not compile has no result to add up.
    [ "$1" = 0 ] || [ "$tests_failed" -gt 0 ] || tests_failed=1
    passed=$((passed + tests_passed))
    failed=$((failed + tests_failed))
}

# Unit, integration and documentation tests. The test profile is the one of `cargo build`: slightly
# optimized, with assertions and overflow checks, and with dependencies fully optimized.
all_tests() {
    cargo test --workspace --features "$FEATURES" --no-fail-fast 2>&1 | tee "$output"
}

# What depends on who runs it, once more as others.
tests_as_users() {
    scripts/test_users.sh "$FEATURES" 2>&1 | tee "$output"
}

# built_tests PACKAGE: runs what all_tests has built of a package once more. `cargo test -p PACKAGE` would
# build it, and all that it uses, with other features.
built_tests() {
    local binary
    binary=$(cargo test --workspace --features "$FEATURES" --no-run --message-format=json 2>/dev/null |
        python3 -c '
import json, sys

for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["target"]["name"] == "main" and "test" in built["target"]["kind"]:
        if "#%s@" % sys.argv[1] in built["package_id"]:
            print(built["executable"])' "$1")
    (cd "crates/${1#esker-}" && "$binary")
}

# Mounts in the process of the test once more, by rings.
tests_by_rings() {
    if ! grep -qs Y /sys/module/fuse/parameters/enable_uring; then
        echo "skipped: no rings: echo Y > /sys/module/fuse/parameters/enable_uring" | tee "$output"
        return
    fi
    ESKER_TEST_TRANSPORT=uring built_tests esker-fuse 2>&1 | tee "$output"
}

# Programs below a supervisor once more with the library that they may preload.
tests_by_preload() {
    ESKER_TEST_PRELOAD=1 built_tests esker-trap 2>&1 | tee "$output"
}

# The live namespace's demonstration with few files: it compares every name and byte.
demo_live() {
    [ -w /dev/fuse ] || { echo "skipped: there is no /dev/fuse"; return 0; }
    local built=${CARGO_TARGET_DIR:-target}/debug
    ESKER=$built/esker ESKER_DEMO_RANK=$built/examples/directory_of_ranks ESKER_DEMO_FILES=20000 \
        scripts/demo_live.sh
}

# Says which tests were skipped for want of a program; cargo shows nothing of tests that pass.
show_skipped() {
    local program go=${GOBIN:-$(go env GOPATH 2>/dev/null)/bin}
    for program in versitygw redis-server fusermount3 chromium strace mpicc.openmpi mpicc.mpich gfortran slurmctld; do
        PATH=$PATH:$go:/usr/sbin command -v "$program" >/dev/null ||
            echo "skipped: what needs $program, which is not installed"
    done
}

check setup scripts/setup.sh build test deny mpi c slurm package
check format cargo fmt --all --check
# Also what is compiled only with MPI: both MPIs compile the same source.
check lint env MPICC=mpicc.openmpi cargo clippy --workspace --all-targets --features "$FEATURES,mpi" -- -D warnings
check tidy cargo xtask tidy
check dependencies scripts/deny.sh
check crates scripts/test_publish.sh
# Links between items are part of the documentation.
check documentation env RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" \
    cargo doc --workspace --no-deps --features "$FEATURES"

for tests in all_tests tests_by_rings tests_by_preload tests_as_users; do
    status=0
    phase "${tests//_/ }" "$tests" || status=$?
    add_results $status
done

check comparisons python3 scripts/test_compare_workbench.py
check install scripts/test_install.sh
check "live demo" demo_live
check slurm scripts/test_slurm.sh "${CARGO_TARGET_DIR:-target}/debug/esker"
check mpi scripts/test_mpi.sh "$FEATURES"
check c scripts/test_c.sh "$FEATURES"
check fuzz scripts/fuzz.sh "$FUZZ_SECONDS"

echo "== times"
printf '%s\n' "${timings[@]}"
show_skipped
echo "$passed passed, $failed failed"
[ $failed = 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the long campaigns: every test marked `#[ignore]`, the campaigns in mounts (soak_mount.py), the
# suites in mounts of every mode (mount_matrix.sh) and mutants that are generated.
#
# usage: scripts/soak.sh [MINUTES] [FILTER]      (default: 60 minutes, every campaign)
#
# Half of the minutes are for the tests, shared out evenly; with a FILTER all are, and nothing else
# runs. A campaign reads ESKER_SOAK=1 and ESKER_SOAK_SECONDS, the seconds it may take; set
# ESKER_SOAK_SECONDS yourself to override. Building does not count. Tests that run half as long again
# as their box are stopped and count as failed. A quarter of the minutes is for stress-ng and kills in
# mounts. The other campaigns in mounts work on as much as fits into about another quarter: at 120
# minutes they have their full size, of which a file takes 20 GiB twice. Every mode of a mount is
# tested in full, which takes 5 to 20 minutes more, and generated mutants (generated_mutants.sh) as long
# as a quarter of the minutes, and what building them takes. ESKER_SOAK_PROFILE=dev builds less optimized.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-60}
filter=${2:-}
case $minutes in
    '' | 0 | *[!0-9]*)
        echo "usage: scripts/soak.sh [MINUTES] [FILTER]" >&2
        exit 2
        ;;
esac
export ESKER_SOAK=1 CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never
export ESKER_SOAK_PROFILE=${ESKER_SOAK_PROFILE:-release}
threads=${RUST_TEST_THREADS:-$(nproc)}
output=$(mktemp)
trap 'rm -f "$output"' EXIT

campaigns=(cargo test --profile "$ESKER_SOAK_PROFILE" --workspace --features s3 --no-fail-fast --lib --bins --tests)
"${campaigns[@]}" --no-run </dev/null

others_failed=0
test_minutes=$minutes
if [ -z "$filter" ]; then
    test_minutes=$(((minutes + 1) / 2))
    scripts/mount_matrix.sh || others_failed=$((others_failed + 1))
    scripts/setup.sh slurm
    cargo build --profile "$ESKER_SOAK_PROFILE" -p esker-cli </dev/null
    profile=$ESKER_SOAK_PROFILE
    [ "$profile" != dev ] || profile=debug
    scripts/test_slurm.sh "${CARGO_TARGET_DIR:-target}/$profile/esker" --faults || others_failed=$((others_failed + 1))
    if [ "$EUID" = 0 ]; then
        cargo build --quiet --profile "$ESKER_SOAK_PROFILE" -p esker-cli --features s3
        built=${CARGO_TARGET_DIR:-target}/${ESKER_SOAK_PROFILE/dev/debug}/esker
        scale=$(awk -v minutes="$minutes" 'BEGIN { print minutes < 120 ? minutes / 120 : 1 }')
        scripts/soak_mount.py --minutes $(((minutes + 3) / 4)) --scale "$scale" --esker "$built" ||
            others_failed=$((others_failed + 1))
    else
        echo "soak: campaigns in mounts skipped: they take the superuser"
    fi
    scripts/generated_mutants.sh $(((minutes + 3) / 4)) || others_failed=$((others_failed + 1))
fi

# Binaries run one after another, the campaigns of one binary `threads` at a time.
read -r count rounds < <("${campaigns[@]}" -- --ignored --list ${filter:+"$filter"} </dev/null 2>/dev/null |
    awk -v threads="$threads" '
        /: test$/ { inside++ }
        /^[0-9]+ tests?, / { count += inside; rounds += int((inside + threads - 1) / threads); inside = 0 }
        END { print count + 0, rounds + 0 }')
if [ "$count" = 0 ]; then
    echo "soak: no campaign${filter:+ matches $filter}"
    [ -z "$filter" ]
    exit
fi
export ESKER_SOAK_SECONDS=${ESKER_SOAK_SECONDS:-$((test_minutes * 60 / rounds))}
echo "soak: $count tests of $ESKER_SOAK_SECONDS s, $threads at a time, in a box of $test_minutes min"

status=0
timeout --kill-after=10 $((test_minutes * 90 + 60)) \
    "${campaigns[@]}" -- --ignored --nocapture --test-threads "$threads" ${filter:+"$filter"} \
    </dev/null 2>&1 | tee "$output" || status=$?
[ $status != 124 ] || echo "soak: stopped at one and a half times the box"
read -r passed failed < <(awk -f scripts/test_tally.awk "$output")
[ $status = 0 ] || [ "$failed" -gt 0 ] || failed=1
failed=$((failed + others_failed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

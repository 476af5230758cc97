#!/usr/bin/env bash
# Runs the long campaigns: every test marked `#[ignore]`, for as long as it is given.
#
# usage: scripts/soak.sh [MINUTES] [FILTER]      (default: 60 minutes, every campaign)
#
# The minutes are shared out evenly. A campaign reads ESKER_SOAK=1 and ESKER_SOAK_SECONDS, the
# seconds it may take; set ESKER_SOAK_SECONDS yourself to override. Building does not count. What
# runs half as long again as the whole box is stopped and counts as failed.
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
threads=${RUST_TEST_THREADS:-$(nproc)}
output=$(mktemp)
trap 'rm -f "$output"' EXIT

campaigns=(cargo test --release --workspace --features s3 --no-fail-fast --lib --bins --tests)
"${campaigns[@]}" --no-run </dev/null
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
export ESKER_SOAK_SECONDS=${ESKER_SOAK_SECONDS:-$((minutes * 60 / rounds))}
echo "soak: $count campaigns of $ESKER_SOAK_SECONDS s, $threads at a time, in a box of $minutes min"

status=0
timeout --kill-after=10 $((minutes * 90 + 60)) \
    "${campaigns[@]}" -- --ignored --nocapture --test-threads "$threads" ${filter:+"$filter"} \
    </dev/null 2>&1 | tee "$output" || status=$?
[ $status != 124 ] || echo "soak: stopped at one and a half times the box"
read -r passed failed < <(awk -f scripts/test_tally.awk "$output")
[ $status = 0 ] || [ "$failed" -gt 0 ] || failed=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

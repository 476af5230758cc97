# SPDX-License-Identifier: Apache-2.0
# What the demonstrations share: the command, a directory to work in with a store, and how steps are shown.
# ESKER is the command (target/release/esker), ESKER_DEMO_DIR a directory for the one to work in (a temporary one).

esker=${ESKER:-${CARGO_TARGET_DIR:-target}/release/esker}
[ -x "$esker" ] || { echo "demo: $esker is not there: run make build" >&2; exit 1; }
esker=$(realpath "$esker")
work=$(mktemp -d "${ESKER_DEMO_DIR:-${TMPDIR:-/tmp}}/esker-demo.XXXXXX")
export ESKER_STORE=$work/store

# The terminal gets a little color, a pipe none.
if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold='' dim='' plain=''; fi
chapter() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
say() { printf '%s\n' "$*"; }
# run COMMAND...: shows an esker command, then runs it.
run() {
    printf '%s$ esker %s%s\n' "$dim" "$(printf '%q ' "$@")" "$plain"
    "$esker" "$@"
}
fail() {
    echo "demo: FAILED: $*" >&2
    exit 1
}

# SPDX-License-Identifier: Apache-2.0
# What the demonstrations share: the command, a directory to work in with a store, and how steps are shown.
# ESKER is the command (target/release/esker), ESKER_DEMO_DIR a directory for the one to work in (a temporary one).
#
# usage: . scripts/demo_steps.sh FLAG ARGUMENT...      the arguments of the script, of which FLAG is the only one that it
# takes: `flag` is yes if it was given, otherwise no.

case "$#:${2:-}" in
    1:) flag=no ;;
    "2:$1") flag=yes ;;
    *)
        sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "scripts/$(basename "$0")" >&2
        exit 2
        ;;
esac

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

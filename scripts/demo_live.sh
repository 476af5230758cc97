#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows a live namespace at work, and checks every name and byte at the end.
#
# usage: scripts/demo_live.sh [--pause]      (waits for Enter before servers and mounts end, to look around)
#
# Three servers share the directories of one namespace. Two mounts show it. A program writes small files in one mount,
# another lists the other mount, and a job of four ranks inserts a million files at once. Meanwhile one server is
# killed, and a standby takes over. Then a snapshot is published, exported and compared. ESKER and ESKER_DEMO_DIR as in
# demo_steps.sh; ESKER_DEMO_RANK is the program of the ranks (target/release/examples/directory_of_ranks),
# ESKER_DEMO_FILES the number of their files (1000000).
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/demo_steps.sh --pause "$@"
pause=$flag
files=${ESKER_DEMO_FILES:-1000000}
here=$work/here there=$work/there

cleanup() {
    touch "$work/end"
    "$esker" umount "$here" >/dev/null 2>&1 || true
    "$esker" umount "$there" >/dev/null 2>&1 || true
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

rank=${ESKER_DEMO_RANK:-${CARGO_TARGET_DIR:-target}/release/examples/directory_of_ranks}
[ -x "$rank" ] || { echo "demo: $rank is not there: run make demo-live" >&2; exit 1; }
rank=$(realpath "$rank")

# until_true SECONDS COMMAND...: waits until it succeeds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || fail "still waiting: $*"
        sleep 0.1
    done
}

# begin_server LOG OPTION...: runs a server in the background; `server` is its process.
begin_server() {
    local log=$1
    shift
    printf '%s$ esker live serve shared %s&%s\n' "$dim" "$(printf '%q ' "$@")" "$plain"
    touch "$work/$log.log"
    "$esker" live serve shared "$@" >"$work/$log.log" 2>&1 &
    server=$!
}

chapter "Three servers share the directories of one namespace; a standby waits for the second to die"
run init
run live create shared --seats 3
for seat in 0 1 2; do
    begin_server "server-$seat" --seats $seat --metrics 127.0.0.1:0
    [ $seat != 1 ] || victim=$server
done
for seat in 0 1 2; do until_true 10 grep -q metrics "$work/server-$seat.log"; done
begin_server standby --seats 1 --standby --metrics 127.0.0.1:0
until_true 10 grep -q 'standing by' "$work/standby.log"
run live list

chapter "Two mounts of it, as on two machines"
mkdir "$here" "$there"
run mount live:shared "$here"
run mount live:shared "$there"
mkdir "$here"/log.{0..7}
run live status shared

chapter "A program writes and syncs small files in the first mount, another one lists the second"
# Each file is synced before it counts. A sync that fails says that a server died with answers that were not durable.
write_log() {
    local number=0 path
    until [ -e "$work/end" ]; do
        path=log.$((number % 8))/$number
        until printf 'entry %d\n' $number >"$here/$path" && sync "$here/$path"; do :; done
        echo "$path" >>"$work/written"
        number=$((number + 1))
    done
}
list_there() {
    until [ -e "$work/end" ]; do
        # A directory that is inserted is there as a whole, or not at all.
        [ ! -e "$there/step-7" ] || find "$there/step-7" -type f | wc -l >>"$work/seen"
        find "$there" -maxdepth 2 | wc -l >>"$work/listed"
    done
}
touch "$work"/{written,seen,listed}
write_log 2>"$work/write_log.err" &
writer=$!
list_there 2>"$work/list_there.err" &
lister=$!
written() { wc -l <"$work/written"; }
more_than() { [ "$(written)" -gt "$1" ]; }
until_true 30 more_than 50
say "$(written) files by now; have a look: ls $there/log.0"

chapter "A job of four ranks writes $files files of one directory, beside the servers"
job=$("$esker" session job)
printf '%s$ esker run -n 4 -- directory_of_ranks %s %s &%s\n' "$dim" "$job" "$files" "$plain"
begun=$SECONDS
"$esker" run -n 4 -- "$rank" "$job" "$files" &
ranks=$!

chapter "Meanwhile the second server is killed"
before=$(written)
disown "$victim"
kill -9 "$victim"
until_true 30 grep -q '^serving' "$work/standby.log"
say "the standby: $(grep '^serving' "$work/standby.log")"
until_true 30 more_than $((before + 20))
say "the program in the mount goes on: $(written) files, none of them failed"
run live top shared --count 1

chapter "The directory of the job appears at once"
wait $ranks || fail "the job"
say "the ranks took $((SECONDS - begun)) s"
run publish --job "$job" step-7
run live insert step-7:/particles shared:/step-7
until_true 60 test -s "$work/seen"
say "the first listing in the second mount has $(head -1 "$work/seen") files"

chapter "A snapshot of everything"
touch "$work/end"
wait $writer $lister
run live snapshot shared result

chapter "What a monitoring system sees of the standby"
metrics=$(sed -n 's/^metrics: //p' "$work/standby.log")
say "$metrics"
run_get() { exec 3<>"/dev/tcp/${1%:*}/${1#*:}" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3; }
address=${metrics#http://}
run_get "${address%/metrics}" | grep -E '^esker_live_(changes|reads|failures|repeated|connections)_total|^esker_live_requests_total.* [1-9]'

if [ $pause = yes ]; then
    say "Look around: $here, $there, $metrics; export ESKER_STORE=$ESKER_STORE. Enter goes on."
    read -r
fi

chapter "The servers end; the snapshot is exported and compared, byte by byte"
run umount "$here"
run umount "$there"
"$esker" export result:/ "$work/result"
cd "$work/result"
expected=$(seq 0 $((files - 1)) | awk '{ print "energy of " $1 }' | sha256sum)
found=$(seq -f particle.%07.0f 0 $((files - 1)) | (cd step-7 && xargs cat) | sha256sum)
[ "$expected" = "$found" ] || fail "the bytes of the job differ"
cmp <(seq -f particle.%07.0f 0 $((files - 1)) | sort) <(find step-7 -mindepth 1 -printf '%P\n' | sort) ||
    fail "the names of the job differ"
cmp <(sort "$work/written") <(find log.* -type f | sort) || fail "the names of the log differ"
expected=$(awk -F/ '{ print "entry " $2 }' "$work/written" | sha256sum)
found=$(xargs cat <"$work/written" | sha256sum)
[ "$expected" = "$found" ] || fail "the bytes of the log differ"
! grep -qvx "$files" "$work/seen" || fail "a listing showed a part of the directory: $(sort "$work/seen" | uniq -c)"
say "all $files files of the job and all $(written) files that were written meanwhile are the same"
say "$(wc -l <"$work/seen") listings of the directory, each of all its files; $(wc -l <"$work/listed") of the root"
cd /

chapter "Where to look next"
say "Guide:     docs/guide/live.md"
say "Measured:  docs/benchmarks.md#live-namespaces"
say "Why:       docs/design/0016-seats.md, 0015-bulk-insertion.md, 0014-mounts-of-live-namespaces.md"

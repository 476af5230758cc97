#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the metadata latencies of an ext4 directory, tmpfs, a mount of Esker, its library,
# PostgreSQL and an S3 server on this machine, one after the other, and writes one page that compares
# them: docs/services.html is its output on an idle machine.
#
# usage: scripts/compare_services.sh PAGE [DIRECTORY]    (DIRECTORY of ext4; default: a temporary one)
#   OBJECTS=2000 ITERATIONS=1000 REPEAT=3   the working set and the benchmark
#
# Needs a release build with --features s3,postgresql, /dev/fuse, and what scripts/setup.sh test
# installs.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly page=$(realpath -m "${1:?usage: scripts/compare_services.sh PAGE [DIRECTORY]}")
readonly objects=${OBJECTS:-2000} iterations=${ITERATIONS:-1000} repeat=${REPEAT:-3}
readonly esker=$PWD/target/release/esker
readonly nobody=65534
programs=$(find /usr/lib/postgresql -name initdb -printf '%h\n' | sort -V | tail -n 1)
gateway=$(command -v versitygw || echo "${GOPATH:-$HOME/go}/bin/versitygw")
top=$(mktemp -d -p "${2:-/tmp}")
memory=$(mktemp -d -p /dev/shm)
servers=()
finish() {
    umount "$top/mount" 2>/dev/null || true
    [ "${#servers[@]}" = 0 ] || kill -QUIT "${servers[@]}" 2>/dev/null || true
    wait
    rm -rf "$top" "$memory"
}
trap finish EXIT
chmod 755 "$top"

# as_user COMMAND...: PostgreSQL refuses the superuser.
as_user() {
    if [ "$EUID" = 0 ]; then
        setpriv --reuid=$nobody --regid=$nobody --clear-groups -- "$@"
    else
        "$@"
    fi
}

# measure NAME TARGET
measure() {
    echo "compare_services: $1" >&2
    "$esker" workbench run "$2" --label "$1" -N 2 -P "$objects" -I "$iterations" --repeat "$repeat" \
        --output "$top/$1.json" >"$top/$1.txt"
    results+=("$top/$1.json")
}

export ESKER_STORE=$top/store
"$esker" init >/dev/null
results=()
measure ext4 "$top/ext4"
measure tmpfs "$memory/tmpfs"
mkdir "$top/mount"
"$esker" mount --write mounted "$top/mount" >/dev/null
measure 'mount of Esker' "$top/mount/work"
"$esker" umount "$top/mount" >/dev/null
measure 'library of Esker' esker:bench

mkdir "$top/postgresql"
[ "$EUID" != 0 ] || chown $nobody:$nobody "$top/postgresql"
(cd "$top/postgresql" && as_user "$programs/initdb" --pgdata=data --username=esker --auth=trust \
    --no-locale --encoding=UTF8 >/dev/null)
(cd "$top/postgresql" && exec setsid bash -c "$(declare -f as_user); nobody=$nobody; as_user \
    '$programs/postgres' -D data -h '' -k '$top/postgresql'" >/dev/null 2>&1) &
servers+=($!)
until "$programs/pg_isready" -q -h "$top/postgresql" -U esker -d postgres; do sleep 0.1; done
measure PostgreSQL "postgresql://esker@${top//\//%2F}%2Fpostgresql/postgres"
as_user "$programs/pg_ctl" -D "$top/postgresql/data" stop -m fast >/dev/null

export AWS_ACCESS_KEY_ID=workbench AWS_SECRET_ACCESS_KEY=workbench-secret AWS_REGION=us-east-1
mkdir -p "$top/s3/bench"
ROOT_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID ROOT_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY \
    "$gateway" --quiet --port 127.0.0.1:7979 posix "$top/s3" >/dev/null 2>&1 &
servers+=($!)
export AWS_ENDPOINT_URL=http://127.0.0.1:7979 AWS_ALLOW_HTTP=true
sleep 2
measure 'S3 (versitygw)' s3://bench/work

"$esker" workbench report "${results[@]}" --to "$page"
cat "$top"/*.txt

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs once more what depends on who runs it: the tests of several users, and those of stores, trees,
# mounts and the command as a user who is not the superuser. Takes the superuser; for anybody else
# `cargo test` was that already. Tests that need the superuser skip themselves and say so.
#
# In a mount namespace of its own, so that the machine stays as it is, /dev/fuse is open to all,
# /etc/fuse.conf lets users mount for others, and users reach a build that lies in a closed directory.
# Where namespaces are forbidden the tests find the machine as it is.
#
# usage: scripts/test_users.sh FEATURES      those of the build that `cargo test` made
#        scripts/test_users.sh --cargo FEATURES, --binary TEST...      the same, further inside
set -euo pipefail

readonly NOBODY=65534
readonly script=$(realpath "$0")
readonly top=$(dirname "$(dirname "$script")")

. "$top/scripts/mount_namespace.sh"

as_nobody() { setpriv --reuid $NOBODY --regid $NOBODY --clear-groups -- "$@"; }

# Covers the first directory above the sources that is closed to users by one that leads to them alone.
open_way() {
    [ -n "$IN_NAMESPACE" ] || return 0
    local path=$top closed=
    while [ "$path" != / ]; do
        as_nobody test -x "$path" || closed=$path
        path=$(dirname "$path")
    done
    [ -n "$closed" ] || return 0
    local kept
    kept=$(mktemp -d)
    mount --bind "$top" "$kept"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    mkdir -p "$top"
    mount --bind "$kept" "$top"
    umount "$kept"
    rmdir "$kept"
}

# Runs all test binaries; cargo passes each to this script.
run_cargo() {
    local triple
    open_fuse
    cd "$top"
    triple=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
    export "CARGO_TARGET_${triple}_RUNNER=$script --in-namespace"
    cargo test --workspace --features "$1" --no-fail-fast --lib --bins --tests
}

# Runs one test binary, or those of its tests that meet permissions, as a user.
run_binary() {
    local package=$PWD home status=0 tests=()
    case $CARGO_PKG_NAME in
        esker-base | esker-fuse) ;;
        esker-fs) tests=(input:: hostile:: real:: posix:: transfer::) ;;
        esker-cli) tests=(--skip guides:: --skip suites::fsx) ;;
        *) return 0 ;;
    esac
    if [[ $CARGO_PKG_NAME = esker-cli && $1 = */main-* ]]; then
        "$@" two_users:: unprivileged:: guides::commands_of_all_pages_work_for_a_user || status=$?
    fi
    open_way
    home=$(mktemp -d)
    chown $NOBODY "$home"
    cd "$package"
    as_nobody env HOME="$home" "$@" "${tests[@]}" || status=$?
    rm -rf "$home"
    return $status
}

case ${1:-} in
    --cargo) run_cargo "${2:-}" ;;
    --in-namespace) in_namespace "$script" --binary "${@:2}" ;;
    --binary) run_binary "${@:2}" ;;
    *)
        if [ "$EUID" != 0 ]; then
            echo "skipped: only the superuser can be several users; cargo test ran as $(id -un)"
            exit 0
        fi
        in_namespace "$script" --cargo "${1:-}"
        ;;
esac

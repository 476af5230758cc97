#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Debian package of a build: what scripts/install.sh installs, below /usr.
#
# usage: scripts/package.sh [BINARY [PACKAGE]]     (target/release/esker, target/debian/esker.deb)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly binary=${1:-target/release/esker} package=${2:-target/debian/esker.deb}
# The paths of crates/cli/Cargo.toml, [package.metadata.deb].
readonly staged=target/package

rm -rf "$staged"
DESTDIR=$PWD/$staged scripts/install.sh /usr "$binary"
mkdir -p "$(dirname "$package")"
cargo deb --quiet -p esker-cli --no-build --no-strip --output "$package" >/dev/null
rm -rf "$staged"
echo "package: $package"

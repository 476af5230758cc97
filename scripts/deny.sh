#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the dependencies of the workspace against deny.toml, where cargo-deny is installed.
#
# usage: scripts/deny.sh                 licences, bans and sources
#        scripts/deny.sh advisories      known vulnerabilities: fetches the RustSec database from GitHub
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- licenses bans sources
PATH="$(realpath "${CARGO_TARGET_DIR:-target}")/suites/bin:$PATH"
if ! command -v cargo-deny >/dev/null; then
    echo "deny: skipped: there is no cargo-deny: scripts/setup.sh deny"
    exit 0
fi
cargo deny --locked --all-features check --hide-inclusion-graph "$@"

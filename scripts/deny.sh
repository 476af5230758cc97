#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the dependencies of the workspace against deny.toml.
#
# usage: scripts/deny.sh                 licences, bans and sources
#        scripts/deny.sh advisories      known vulnerabilities: fetches the RustSec database from GitHub
#
# Fails where there is no cargo-deny; `scripts/setup.sh deny` installs it.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- licenses bans sources
PATH="$(realpath "${CARGO_TARGET_DIR:-target}")/suites/bin:$PATH"
if ! command -v cargo-deny >/dev/null; then
    echo "deny: there is no cargo-deny; run scripts/setup.sh deny" >&2
    exit 1
fi
cargo deny --locked --all-features check --hide-inclusion-graph "$@"

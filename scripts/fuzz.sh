#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for a bounded time.
#
# usage: scripts/fuzz.sh SECONDS      (of each target)
#
# With cargo-fuzz and a nightly toolchain, targets run under coverage guidance and the address
# sanitizer. Without, `cargo test` of fuzz/ runs the same targets over their corpus and over random
# input; it is told the bound by ESKER_FUZZ_SECONDS.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?usage: scripts/fuzz.sh SECONDS}

if [ ! -f fuzz/Cargo.toml ]; then
    echo "fuzz: skipped, there are no targets: fuzz/ does not exist"
    exit 0
fi

if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: without coverage guidance; for it run: rustup toolchain install nightly && cargo install cargo-fuzz"
    exec env ESKER_FUZZ_SECONDS="$seconds" cargo test --release --manifest-path fuzz/Cargo.toml
fi

status=0
for target in $(cargo +nightly fuzz list); do
    echo "fuzz: $target for $seconds s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -verbosity=0 || {
        echo "fuzz: $target FAILED"
        status=1
    }
done
exit $status

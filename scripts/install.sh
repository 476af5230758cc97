#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the programs that `make build` made, esker and esker-bench beside it, with manual pages,
# completions, guides, examples of programs, the helper of mount(8) and a systemd unit.
#
# usage: scripts/install.sh PREFIX [BINARY]      below $DESTDIR, if that is set
#
# Everything goes below PREFIX but the helper: mount(8) looks for it in /sbin, so that only the
# superuser, or a package that is being built (DESTDIR), gets it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly prefix=${1:?usage: scripts/install.sh PREFIX [BINARY]} binary=${2:-target/release/esker}
readonly root=${DESTDIR:-}
readonly share=$root$prefix/share

[ -x "$binary" ] || { echo "install: $binary is missing; run 'make build' first" >&2; exit 1; }
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT

install -Ds -m 755 "$binary" "$root$prefix/bin/esker"
install -Ds -m 755 "$(dirname "$binary")/esker-bench" "$root$prefix/bin/esker-bench"
"$binary" manual "$pages"
install -d "$share/man/man1"
install -m 644 "$pages"/*.1 "$share/man/man1/"
for shell in bash zsh fish; do "$binary" completions "$shell" >"$pages/$shell"; done
install -Dm 644 "$pages/bash" "$share/bash-completion/completions/esker"
install -Dm 644 "$pages/zsh" "$share/zsh/site-functions/_esker"
install -Dm 644 "$pages/fish" "$share/fish/vendor_completions.d/esker.fish"
for page in README.md CHANGELOG.md LICENSE NOTICE docs/benchmarks.md docs/guide/*.md; do
    install -Dm 644 "$page" "$share/doc/esker/${page#docs/}"
done
readonly examples=$share/doc/esker/examples
install -d "$examples/rust" "$examples/c" "$examples/fortran"
install -m 644 crates/esker/examples/*.rs "$examples/rust/"
install -m 644 bindings/c/tests/programs/{check.h,ranks.c,objects.cpp} "$examples/c/"
install -m 644 bindings/fortran/heat.f90 "$examples/fortran/"
sed "s|@BINDIR@|$prefix/bin|" packaging/esker-mount@.service >"$pages/unit"
install -Dm 644 "$pages/unit" "$root$prefix/lib/systemd/system/esker-mount@.service"
install -Dm 755 packaging/slurm/esker-slurm "$root$prefix/lib/esker/esker-slurm"
if [ -n "$root" ] || [ "$EUID" = 0 ]; then
    install -Dm 755 packaging/mount.esker "$root/sbin/mount.esker"
fi
echo "install: $root$prefix/bin/esker and $(find "$pages" -name '*.1' | wc -l) manual pages"

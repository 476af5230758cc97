#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the C library: headers, the shared library, the archive, the sources of the Fortran module
# and of MPI-IO, and what pkg-config and CMake look for.
#
# usage: scripts/install_c.sh PREFIX [ARCHIVE]      below $DESTDIR, if that is set
#
# cargo gives a shared library neither a soname nor versioned symbols, so it is linked here from the
# archive.
set -euo pipefail
umask 022

prefix=$(realpath -ms "${1:?usage: scripts/install_c.sh PREFIX [ARCHIVE]}")
archive=${2:+$(realpath -ms "$2")}
destination=${DESTDIR:+$(realpath -ms "$DESTDIR")}
cd "$(dirname "$0")/.."
archive=${archive:-target/release/libesker_c.a}
readonly root=$destination$prefix cc=${CC:-cc}
readonly static_libs="-lgcc_s -lutil -lrt -lpthread -lm -ldl"

[ -f "$archive" ] || { echo "install_c: $archive is missing; run 'make c' first" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Before 1.0 a minor version may change anything.
minor=${version%.*}
package=bindings/c/packaging

install -d "$root/lib/pkgconfig" "$root/lib/cmake/Esker" "$root/include" "$root/share/esker"
install -m 644 bindings/c/include/*.h bindings/c/include/*.hpp "$root/include/"
install -Dm 644 bindings/c/include/esker/deltafs_api.h "$root/include/esker/deltafs_api.h"
install -m 644 bindings/fortran/esker.f90 "$root/share/esker/"
install -d "$root/share/esker/mpi-io"
install -m 644 bindings/mpi-io/*.[ch] "$root/share/esker/mpi-io/"
install -m 644 "$archive" "$root/lib/libesker.a"
strip --strip-debug "$root/lib/libesker.a"
# shellcheck disable=SC2086  # several libraries
"$cc" -shared -o "$root/lib/libesker.so.$version" -Wl,-soname,"libesker.so.$minor" \
    -Wl,--version-script="$package/esker.map" -Wl,--gc-sections -Wl,-z,defs \
    -Wl,--whole-archive "$root/lib/libesker.a" -Wl,--no-whole-archive $static_libs
strip --strip-unneeded "$root/lib/libesker.so.$version"
ln -sf "libesker.so.$version" "$root/lib/libesker.so.$minor"
ln -sf "libesker.so.$minor" "$root/lib/libesker.so"

# A prefix with characters that sed understands.
escaped=$(sed 's/[&|\\]/\\&/g' <<<"$prefix")
fill() {
    sed -e "s|@PREFIX@|$escaped|; s|@VERSION@|$version|; s|@MINOR@|$minor|" \
        -e "s|@STATIC_LIBS@|$static_libs|" "$1" >"$2"
    chmod 644 "$2"
}
fill $package/esker.pc.in "$root/lib/pkgconfig/esker.pc"
fill $package/EskerConfig.cmake "$root/lib/cmake/Esker/EskerConfig.cmake"
fill $package/EskerConfigVersion.cmake "$root/lib/cmake/Esker/EskerConfigVersion.cmake"
echo "install_c: $root/lib/libesker.so.$version, $(du -h "$root/lib/libesker.so.$version" | cut -f1)"

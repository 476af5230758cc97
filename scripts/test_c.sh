#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the C library below a temporary directory and uses it as programs do: C, C++, Fortran and
# MPI, by pkg-config and CMake, with the address sanitizer and under valgrind.
#
# usage: scripts/test_c.sh [FEATURES]     the features that the rest of the workspace was built with
set -euo pipefail
cd "$(dirname "$0")/.."

features=${1:-s3}
target=${CARGO_TARGET_DIR:-target}
programs=$PWD/bindings/c/tests/programs
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
say() { echo "test_c: $*"; }

# With the tests, so that nothing is built once more with other features.
cargo build --quiet --workspace --lib --tests --features "$features"
scripts/install_c.sh "$top/usr" "$target/debug/libesker_c.a"
export PKG_CONFIG_PATH=$top/usr/lib/pkgconfig LD_LIBRARY_PATH=$top/usr/lib
esker=$(realpath "$target/debug/esker")
readonly strict=(-Wall -Wextra -pedantic -Werror)
readonly c=(-std=c11 -D_GNU_SOURCE "${strict[@]}")
read -ra cflags < <(pkg-config --cflags esker)
read -ra libs < <(pkg-config --libs esker)
read -ra static_libs < <(pkg-config --libs --static esker)

# The header stands alone, and the library exports what it declares.
echo '#include "esker.h"' >"$top/alone.c"
for compiler in cc clang; do
    command -v $compiler >/dev/null || continue
    $compiler -std=c11 "${strict[@]}" "${cflags[@]}" -fsyntax-only "$top/alone.c"
    $compiler -std=c++17 -x c++ "${strict[@]}" "${cflags[@]}" -fsyntax-only "$top/alone.c"
done
cc "${cflags[@]}" "$programs/abi.c" -o "$top/abi"
"$top/abi" | diff bindings/c/tests/abi.txt - || { say "structs changed"; exit 1; }
nm -D --defined-only "$top/usr/lib/libesker.so" | awk '$2 == "T" { sub("@.*", "", $3); print $3 }' \
    | sort >"$top/exported"
sed 's|/\*.*\*/||' bindings/c/include/esker.h | grep -o '^[a-z].*\besker_[a-z_]*(' \
    | grep -o 'esker_[a-z_]*($' | tr -d '(' | sort >"$top/declared"
diff "$top/declared" "$top/exported" || { say "the library exports other functions"; exit 1; }
readelf -d "$top/usr/lib/libesker.so" | grep -q 'soname: \[libesker.so.0.1\]'

# fresh: makes an empty directory for a program, and prints its path.
fresh() {
    rm -rf "$top/work"
    mkdir "$top/work"
    echo "$top/work"
}

for program in every_function wrong_handles; do
    cc "${c[@]}" "${cflags[@]}" "$programs/$program.c" "${libs[@]}" -lpthread -o "$top/$program"
    "$top/$program" "$(fresh)"
    # The archive, with the program's own accesses checked.
    cc -g -fsanitize=address,undefined "${c[@]}" "${cflags[@]}" "$programs/$program.c" \
        "$top/usr/lib/libesker.a" "${static_libs[@]}" -o "$top/$program.sanitized"
    "$top/$program.sanitized" "$(fresh)" >/dev/null
done
if command -v valgrind >/dev/null; then
    valgrind --quiet --error-exitcode=1 "$top/every_function" "$(fresh)" >/dev/null
    say "valgrind found nothing"
fi
c++ -std=c++17 "${strict[@]}" "${cflags[@]}" "$programs/objects.cpp" "${libs[@]}" -o "$top/objects"
"$top/objects" "$(fresh)"

# A program of two source files shares one state.
echo '#include "esker/deltafs_api.h"' >"$top/second.c"
cc "${c[@]}" -fsanitize=address,undefined "${cflags[@]}" "$programs/deltafs.c" "$top/second.c" \
    "${libs[@]}" -lpthread -o "$top/deltafs"
c++ -std=c++17 -x c++ "${strict[@]}" "${cflags[@]}" -fsyntax-only "$top/second.c"

# store: makes a store, and prints its path.
store() {
    local at
    at=$(fresh)/store
    ESKER_STORE=$at "$esker" init >/dev/null
    echo "$at"
}

ESKER_STORE=$(store) ESKER_DELTAFS_NAME=written "$top/deltafs" write
ESKER_STORE=$top/work/store ESKER_DELTAFS_BASE=written ESKER_DELTAFS_NAME=read "$top/deltafs" read

# Clients of a live namespace, whose server is a process of its own.
cc -g -fsanitize=address,undefined "${c[@]}" "${cflags[@]}" "$programs/live.c" \
    "$top/usr/lib/libesker.a" "${static_libs[@]}" -o "$top/live"
live=$(store)
"$top/live" "$live" create
ESKER_STORE=$live "$esker" live serve run >/dev/null &
server=$!
"$top/live" "$live" use
[ "$(ESKER_STORE=$live "$esker" ls monday:/run/inserted | wc -l)" = 3000 ]
kill $server
wait $server

cc "${c[@]}" "${cflags[@]}" "$programs/ranks.c" "${libs[@]}" -lpthread -o "$top/ranks"
"$top/ranks" "$(store)" 4
ESKER_STORE=$(store) timeout 120 "$esker" run -n 3 -- "$top/ranks" "$top/work/store"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" "mpirun.$mpi" >/dev/null; then
        say "$mpi is not installed: scripts/setup.sh mpi"
        exit 1
    fi
    "mpicc.$mpi" -DWITH_MPI "${c[@]}" "${cflags[@]}" "$programs/ranks.c" "${libs[@]}" \
        -o "$top/ranks.$mpi"
    timeout 120 "mpirun.$mpi" -n 4 "$top/ranks.$mpi" "$(store)"
done

# Programs of the guide, and the example in Fortran, by CMake.
mkdir "$top/project"
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' docs/guide/c.md >"$top/project/guide.c"
cp bindings/fortran/heat.f90 "$top/project/"
cat >"$top/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.13)
project(simulation C)
find_package(Esker 0.1 REQUIRED COMPONENTS Fortran MPI)
add_executable(guide guide.c)
target_link_libraries(guide Esker::esker)
add_executable(guide-static guide.c)
target_link_libraries(guide-static Esker::static)
add_executable(heat heat.f90)
target_link_libraries(heat Esker::fortran)
END
cmake -S "$top/project" -B "$top/build" -DCMAKE_PREFIX_PATH="$top/usr" >"$top/cmake" 2>&1 \
    && cmake --build "$top/build" >>"$top/cmake" 2>&1 || { cat "$top/cmake"; exit 1; }
for program in guide guide-static; do
    (cd "$(fresh)" && "$top/build/$program")
done
alone=$("$top/build/heat" "$(store)")
together=$(ESKER_STORE=$(store) timeout 120 "$esker" run -n 3 -- "$top/build/heat" "$top/work/store")
[ "${alone#*:}" = "${together#*:}" ] || { say "heat differs: $alone $together"; exit 1; }
[ "$(ESKER_STORE=$top/work/store "$esker" ls heat:/step-200 | wc -l)" = 3 ]
scripts/test_mpi_io.sh "$top/usr" "$esker"
say "ok"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds libesker_mpiio.so with each MPI as the guide says, and runs MPI-IO programs on it: the rules of
# MPI-IO, patterns of IOR, mpi-tile-io and BTIO, HDF5, h5py, PnetCDF and Fortran. Each byte that they write
# is compared with those of the same program on a plain file.
#
# usage: scripts/test_mpi_io.sh PREFIX ESKER     where the C library is installed, and the command
set -euo pipefail
prefix=$(realpath "$1") esker=$(realpath "$2")
cd "$(dirname "$0")/.."

tests=$PWD/bindings/mpi-io/tests
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
say() { echo "test_mpi_io: $*"; }
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
export ESKER_STORE=$top/store
"$esker" init >/dev/null
read -ra flags < <(pkg-config --cflags --libs esker)

# within NAME RANKS COMMAND...: runs ranks whose files below /esker are published as NAME.
within() {
    local name=$1 ranks=$2
    shift 2
    ESKER_MPIIO_AT=/esker ESKER_MPIIO_WRITE=$name timeout 120 "mpirun.$mpi" -n "$ranks" \
        env LD_PRELOAD="$top/libesker_mpiio.$mpi.so" "$@" >"$top/said" 2>&1 \
        || { cat "$top/said"; say "$mpi: $* failed"; return 1; }
}

# same NAME COMMAND...: runs a program on a file of Esker and on a plain file, and compares the bytes. The
# command has FILE where the file's name goes.
same() {
    local name=$1
    shift
    rm -f "$top/plain"
    timeout 120 "mpirun.$mpi" -n 4 "${@/FILE/$top/plain}" >"$top/said" 2>&1 || { cat "$top/said"; return 1; }
    within "$name" 4 "${@/FILE//esker/file}"
    "$esker" cat "$name:/file" | cmp - "$top/plain" || { say "$mpi: $* differs"; return 1; }
}

patterns=(
    "-b 4k -t 4k -s 64 -C"
    "-c -b 4k -t 4k -s 8"
    "-V -b 4k -t 4k -s 64 -C"
    "-V -c -b 4k -t 4k -s 64"
    "-e -b 256k -t 32k -s 4 -C"
    "-p tile -n 48 -C"
    "-p tile -n 48 -c"
    "-p bt -n 24 -C"
    "-p bt -n 24 -c -i 2"
)
hdf5=() pnetcdf=() h5py=()
for mpi in openmpi mpich; do
    [ ! -d "/usr/include/hdf5/$mpi" ] || hdf5+=("$mpi")
done
[ ! -f /usr/include/pnetcdf.h ] || pnetcdf=(openmpi)
[ ! -d /usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi ] || h5py=(openmpi)
[ ${#hdf5[@]} = 2 ] && [ ${#pnetcdf[@]} = 1 ] && [ ${#h5py[@]} = 1 ] \
    || say "left out for lack of packages (scripts/setup.sh mpi): some of HDF5, PnetCDF and h5py"

for mpi in openmpi mpich; do
    "mpicc.$mpi" -O2 -g -shared -fPIC -std=c11 -D_GNU_SOURCE -Wall -Wextra -pedantic -Werror \
        "$prefix"/share/esker/mpi-io/*.c "${flags[@]}" -ldl -o "$top/libesker_mpiio.$mpi.so"
    for program in rules resume; do
        "mpicc.$mpi" -O1 -Wall -Wextra -Wno-stringop-overflow "$tests/$program.c" -o "$top/$program"
    done
    "mpicc.$mpi" -O1 -std=c11 -Wall -Wextra peers/mpi-io/mpi-io-load.c -o "$top/load"

    for ranks in 1 3; do
        within "rules-$mpi-$ranks" "$ranks" "$top/rules" /esker/directory
        grep -q 'rules ok' "$top/said"
    done
    for number in "${!patterns[@]}"; do
        read -ra options <<<"${patterns[number]}"
        same "pattern-$mpi-$number" "$top/load" -o FILE "${options[@]}" -k
    done

    # A file of an earlier run is read, and nothing is left of the run that reads.
    ESKER_MPIIO_BASE=pattern-$mpi-0 within '' 2 "$top/load" -o /esker/file -b 8k -t 4k -s 64 -r -k
    [ -z "$("$esker" session list)" ] || { say "$mpi: reading left a session"; exit 1; }

    # Linked instead of loaded before; the job has deleted a file of an earlier run, and done nothing else.
    ln -sf "libesker_mpiio.$mpi.so" "$top/libesker_mpiio.so"
    "mpicc.$mpi" -O1 -Wall -Wextra "$tests/delete.c" -o "$top/delete" -L"$top" -lesker_mpiio
    ESKER_MPIIO_BASE=pattern-$mpi-0 ESKER_MPIIO_AT=/esker ESKER_MPIIO_WRITE=deleted-$mpi \
        LD_LIBRARY_PATH=$top:$LD_LIBRARY_PATH timeout 120 "mpirun.$mpi" -n 2 "$top/delete" /esker/file \
        >"$top/said" 2>&1 || { cat "$top/said"; exit 1; }
    [ -z "$("$esker" ls "pattern-$mpi-0:/" | grep -vx file)" ] && [ -z "$("$esker" ls "deleted-$mpi:/")" ]

    # A rank dies; the next run goes on with what was synced.
    export ESKER_MPIIO_JOB
    ESKER_MPIIO_JOB=$(printf '%032x' $((RANDOM + 1)))
    ! within "resumed-$mpi" 3 "$top/resume" write /esker/checkpoint 3 >/dev/null || exit 1
    within "resumed-$mpi" 2 "$top/resume" check /esker/checkpoint 3
    unset ESKER_MPIIO_JOB
    [ "$("$esker" cat "resumed-$mpi:/checkpoint" | wc -c)" = 120000 ]

    # Fortran, with the bindings of Fortran 90 and 2008.
    sed 's/^    use mpi$/    use mpi_f08/; s/integer :: file, view, rank/type(MPI_File) :: file\
    type(MPI_Datatype) :: view\
    integer :: rank/' "$tests/array.f90" >"$top/array08.f90"
    for program in "$tests/array.f90" "$top/array08.f90"; do
        "mpifort.$mpi" -J "$top" "$program" -o "$top/array"
        same "$(basename "$program" .f90)-$mpi" "$top/array" FILE
    done
done
for mpi in "${hdf5[@]}"; do
    "mpicc.$mpi" -Wall -Wextra "$tests/hdf5.c" -o "$top/hdf5" -I"/usr/include/hdf5/$mpi" \
        -L"/usr/lib/$(uname -m)-linux-gnu/hdf5/$mpi" -lhdf5
    within "hdf5-$mpi" 3 "$top/hdf5" /esker/file.h5
    timeout 120 "mpirun.$mpi" -n 3 "$top/hdf5" "$top/plain.h5" >/dev/null
    "$esker" cat "hdf5-$mpi:/file.h5" >"$top/found.h5"
    ! command -v h5diff >/dev/null || h5diff "$top/found.h5" "$top/plain.h5"
done
for mpi in "${pnetcdf[@]}"; do
    "mpicc.$mpi" -Wall -Wextra "$tests/pnetcdf.c" -o "$top/pnetcdf" -lpnetcdf
    same "pnetcdf-$mpi" "$top/pnetcdf" FILE
done
for mpi in "${h5py[@]}"; do
    within "h5py-$mpi" 3 /usr/bin/python3 "$tests/h5py_ranks.py" /esker/file.h5
    grep -q 'h5py ok' "$top/said"
done
"$esker" verify >"$top/said" || { cat "$top/said"; exit 1; }
say "ok"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what talks by MPI with 4 ranks, under Open MPI and under MPICH: the conformance suite of ranks,
# as one node and as two; both programs of examples/plasma, whose output must be that of threads; and,
# under one of them, `esker imd write`. Each MPI has a build of its own.
#
# usage: scripts/test_mpi.sh [--rates]      (scripts/setup.sh mpi installs what it needs)
#   --rates   measure messages between 2 ranks instead, optimized
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RANKS=4
# Open MPI does not run as root, or with more ranks than processors, unless told so.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

rates=${1:-}
case $rates in
    '') profile=dev directory=debug ranks=$RANKS runs=('' 2) ;;
    --rates) profile=release directory=release ranks=2 runs=(--rates) ;;
    *)
        sed -n 5,7p "$0" >&2
        exit 2
        ;;
esac
target=${CARGO_TARGET_DIR:-target}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# ranks MPI PROGRAM ARGUMENTS...: runs PROGRAM as the ranks of a job.
ranks() {
    local mpi=$1
    shift
    timeout 120 "mpirun.$mpi" -n "$ranks" "$@" </dev/null
}

# same WHAT FILE FILE: fails unless both have the same text.
same() {
    if ! diff "$2" "$3" >&2; then
        echo "test_mpi: $1 differs" >&2
        exit 1
    fi
}

# plasma MPI DIRECTORY: both programs write over MPI, and find what the one of threads wrote.
plasma() {
    local mpi=$1 bin=$2 id program
    local work=(--electrons 2000 --epochs 3 --steps 5)
    "$bin/plasma-files" run "$scratch/threads" --ranks "$ranks" "${work[@]}" >"$scratch/fastest"
    for program in files indexed; do
        ranks "$mpi" "$bin/plasma-$program" run "$scratch/$mpi-$program" --mpi "${work[@]}" \
            >"$scratch/said"
        same "what $program found fastest under $mpi" "$scratch/fastest" "$scratch/said"
        for id in 0 1000 1999; do
            "$bin/plasma-files" trace "$scratch/threads" $id >"$scratch/trace"
            "$bin/plasma-$program" trace "$scratch/$mpi-$program" $id >"$scratch/said"
            same "electron $id of $program under $mpi" "$scratch/trace" "$scratch/said"
        done
    done
    rm -rf "$scratch/threads"
    echo "$ranks ranks of plasma agree with threads: $mpi"
}

# write_particles MPI DIRECTORY: the command writes an indexed directory, and checks what it reads.
write_particles() {
    local mpi=$1 esker=$2/esker
    export ESKER_STORE=$scratch/$mpi-store
    ranks "$mpi" "$esker" imd write run:/p --transport mpi --per-node 2 --routing 3hop \
        --keys 4000 --epochs 2 --rank-memory 4M
    "$esker" imd info run:/p --json | grep -q '"records":8000'
    "$esker" bench imd-get run:/p --operations 1000
}

for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" "mpirun.$mpi" >/dev/null; then
        echo "test_mpi: $mpi is not installed: run scripts/setup.sh mpi" >&2
        exit 1
    fi
    export MPICC=mpicc.$mpi
    # One build with all that runs below, so that no crate is compiled twice with other features.
    build=(-p esker-comm --features esker-comm/mpi --example mpi_conformance)
    if [ -z "$rates" ]; then
        build+=(-p plasma --features plasma/mpi --bins)
        # What differs between MPIs is below the command.
        [ "$mpi" = mpich ] || build+=(-p esker-cli --features esker-cli/mpi)
    fi
    cargo build --quiet "${build[@]}" --profile "$profile" --target-dir "$target/$mpi"
    for argument in "${runs[@]}"; do
        # shellcheck disable=SC2086  # no argument at all where it is empty
        ranks "$mpi" "$target/$mpi/$directory/examples/mpi_conformance" $argument
    done
    [ -z "$rates" ] || continue
    plasma "$mpi" "$target/$mpi/debug"
    [ "$mpi" = mpich ] || write_particles "$mpi" "$target/$mpi/debug"
done

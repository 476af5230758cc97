#!/usr/bin/env bash
# Runs the conformance suite of ranks over MPI: 4 ranks under Open MPI and under MPICH, as one node
# and as two. Each MPI has a build of its own.
#
# usage: scripts/test_mpi.sh      (scripts/setup.sh mpi installs what it needs)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RANKS=4
# Open MPI does not run as root, or with more ranks than processors, unless told so.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

target=${CARGO_TARGET_DIR:-target}
for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" "mpirun.$mpi" >/dev/null; then
        echo "test_mpi: $mpi is not installed: run scripts/setup.sh mpi" >&2
        exit 1
    fi
    # Both compile the same source.
    if [ "$mpi" = openmpi ]; then
        MPICC=mpicc.$mpi cargo clippy --quiet -p esker-comm --features mpi --lib --examples \
            --target-dir "$target/$mpi" -- -D warnings
    fi
    MPICC=mpicc.$mpi cargo build --quiet -p esker-comm --features mpi --example mpi_conformance \
        --target-dir "$target/$mpi"
    for per_node in '' 2; do
        # shellcheck disable=SC2086  # no argument at all where it is empty
        timeout 120 "mpirun.$mpi" -n "$RANKS" \
            "$target/$mpi/debug/examples/mpi_conformance" $per_node </dev/null
    done
done

#!/usr/bin/env bash
# Runs the conformance suite of ranks over MPI: 4 ranks under Open MPI and under MPICH, as one node
# and as two. Each MPI has a build of its own.
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
for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" "mpirun.$mpi" >/dev/null; then
        echo "test_mpi: $mpi is not installed: run scripts/setup.sh mpi" >&2
        exit 1
    fi
    # Both compile the same source.
    if [ "$mpi$rates" = openmpi ]; then
        MPICC=mpicc.$mpi cargo clippy --quiet -p esker-comm --features mpi --lib --examples \
            --target-dir "$target/$mpi" -- -D warnings
    fi
    MPICC=mpicc.$mpi cargo build --quiet -p esker-comm --features mpi --example mpi_conformance \
        --profile "$profile" --target-dir "$target/$mpi"
    for argument in "${runs[@]}"; do
        # shellcheck disable=SC2086  # no argument at all where it is empty
        timeout 120 "mpirun.$mpi" -n "$ranks" \
            "$target/$mpi/$directory/examples/mpi_conformance" $argument </dev/null
    done
done

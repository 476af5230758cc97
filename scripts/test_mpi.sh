#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what uses MPI, under Open MPI and under MPICH: with 4 ranks the conformance suite of ranks, as
# one node and as two, both programs of examples/plasma, whose output must be that of threads, and
# `esker bench imd-write`; a job whose ranks serve a live namespace; the conformance suite of MPI-IO;
# `esker workbench` on MPI-IO, whose ranks are processes of MPI, processes that meet in a store, and threads;
# and replays of traces by MPI-IO, independent and collective.
#
# usage: scripts/test_mpi.sh [--rates | FEATURES]      (scripts/setup.sh mpi installs what it needs)
#   --rates    measure messages between 2 ranks instead, optimized
#   FEATURES   those that the rest of the workspace was built with
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RANKS=4
# Open MPI does not run as root, or with more ranks than processors, unless told so.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

rates=${1:-}
features=s3
case $rates in
    --rates) profile=release directory=release ranks=2 runs=(--rates) ;;
    -*)
        sed -n 8,10p "$0" >&2
        exit 2
        ;;
    *)
        profile=dev directory=debug ranks=$RANKS runs=('' 2) features=${rates:-s3} rates=
        ;;
esac
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scratch=$(mktemp -d)
# The programs that other tests run talk over no MPI.
without_mpi=$scratch/without-mpi
mkdir -p "$without_mpi/examples"
cp -p "$target/$directory"/esker{,-bench} "$without_mpi" 2>/dev/null || true
cp -p "$target/$directory/examples/live_job" "$without_mpi/examples" 2>/dev/null || true
trap 'cp -rp --remove-destination "$without_mpi"/* "$target/$directory" 2>/dev/null || true; rm -rf "$scratch"' EXIT

# keep_programs MPI: copies what was just built, since the other MPI's build replaces it.
keep_programs() {
    rm -rf "${target:?}/$1"
    mkdir -p "$target/$1/examples"
    cp "$target/$directory/examples"/*_conformance "$target/$1/examples"
    [ -z "$rates" ] || return 0
    cp "$target/$directory"/{esker,esker-bench,plasma-files,plasma-indexed} "$target/$1"
    cp "$target/$directory/examples/live_job" "$target/$1/examples"
}

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
    ranks "$mpi" "$esker" bench imd-write run:/p --transport mpi --per-node 2 --routing 3hop \
        --keys 4000 --epochs 2 --rank-memory 4M
    "$esker" imd info run:/p --json | grep -q '"records":8000'
    "$esker" bench imd-get run:/p --operations 1000
}

# serve_in_job MPI DIRECTORY: ranks serve a live namespace and use it, and publish a snapshot.
serve_in_job() {
    local mpi=$1 bin=$2
    # MPICH does not name the job.
    ESKER_STORE=$scratch/$mpi-store ESKER_JOB=$mpi-$$ ranks "$mpi" "$bin/examples/live_job" \
        | grep -q "^$ranks ranks made $((1000 * ranks)) files"
    local files
    files=$(ESKER_STORE=$scratch/$mpi-store "$bin/esker" ls live-job:/checkpoint | wc -l)
    [ "$files" = $((1001 * ranks)) ]
}

# measured RANKS FILE: fails unless FILE is the result of that many ranks on MPI-IO, without failures.
measured() {
    python3 - "$@" <<'END'
import json, os, sys

ranks, path = int(sys.argv[1]), sys.argv[2]
result = json.load(open(path))
assert result["backend"] == "mpiio" and result["options"]["size"]["ranks"] == ranks, path
kinds = [phase["plan"]["kind"] for phase in result["phases"]]
repeated = [kind for kind in ("benchmark", "names", "races") for _ in range(2)]
assert kinds == ["precreate", *repeated, "cleanup"], kinds
calls = {}
for phase in result["phases"]:
    for operation in phase["operations"]:
        name = operation["operation"]
        assert not operation["failures"], (phase["plan"], operation["first_failure"])
        # Ranks may win or lose all their races.
        measured = phase["plan"]["kind"] == "races" or len(operation["ranks"]) == ranks
        assert measured, (phase["plan"], name)
        calls[name] = calls.get(name, 0) + operation["service"]["count"]
# Each rank precreates 20 objects, consumes and appends 10 in each benchmark, and cleans up 20; each
# of the 2 * 10 races has one winner, who deletes the object.
assert calls["read"] == calls["stat"] == 20 * ranks, calls
assert calls["create"] == calls["delete"] == 40 * ranks + 20, calls
assert calls["create-lost"] == 20 * (ranks - 1), calls
# A launcher that binds each rank to a processor takes none from the others.
usable = len(os.sched_getaffinity(0))
assert result["environment"]["processors"] >= min(ranks, usable), result["environment"]
print(f"{ranks} ranks measured: {result['environment']['service']}")
END
}

# measure_files MPI DIRECTORY: ranks of each kind measure MPI-IO, and leave nothing.
measure_files() {
    local mpi=$1 esker=$2/esker set=$scratch/$mpi-set result=$scratch/$mpi.json ranks=2
    local work=(workbench run "mpiio:$set" -P 20 -I 10 --repeat 2 --names --races --output "$result")
    unset ESKER_STORE
    ranks "$mpi" "$esker" "${work[@]}" >/dev/null
    measured 2 "$result"
    "$esker" run -n 2 -- "$esker" "${work[@]}" >/dev/null
    measured 2 "$result"
    "$esker" "${work[@]}" -N 3 >/dev/null
    measured 3 "$result"
    # Over MPI processes measure other targets without a store too.
    ranks "$mpi" "$esker" workbench run "$set" --transport mpi -P 20 -I 10 --json >"$result"
    grep -q '"backend":"posix"' "$result"
    grep -q '"ranks":2[,}]' "$result"
    # A working set is a directory, which POSIX calls and MPI-IO share.
    "$esker" workbench run "$set" -N 2 -P 20 -I 10 --keep >/dev/null
    ranks "$mpi" "$esker" workbench run "mpiio:$set" -P 20 -I 10 --keep >/dev/null
    "$esker" workbench cleanup "mpiio:$set"
    [ ! -e "$set" ]
}

# replayed SYSTEM REQUESTS FILE: fails unless FILE is the result of a replay of that many requests.
replayed() {
    python3 - "$@" <<'END'
import json, sys

system, requests, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
result = json.load(open(path))
assert result["system"] == system, result
assert (result["requests"], result["skipped"], result["metadata_operations"]) == (requests, 0, 4), result
assert 0 < result["io_seconds"] <= 2 * result["seconds"], result
END
}

# replay_traces MPI DIRECTORY: ranks of each kind replay a trace by MPI-IO, which checks every byte, and
# leave nothing; traces that ranks cannot replay together are refused.
replay_traces() {
    local mpi=$1 esker=$2/esker to=$scratch/$mpi-replay trace=$scratch/trace.arrow ranks=2
    local result=$scratch/$mpi-replay.json
    unset ESKER_STORE
    "$esker" advise synth ior-strided -p 2 -n 40 -r 8K --written 20 -o "$trace" >/dev/null
    ranks "$mpi" "$esker" advise replay "$trace" "mpiio:$to" --json >"$result"
    replayed mpiio-independent 80 "$result"
    ranks "$mpi" "$esker" advise replay "$trace" "mpiio:$to" --collective --json >"$result"
    replayed mpiio-collective 80 "$result"
    "$esker" advise replay "$trace" "mpiio:$to" --timing traced --json >"$result"
    replayed mpiio-independent 80 "$result"
    "$esker" advise measure "$scratch/$mpi-rows.csv" --system "mpi=mpiio:$to" --pattern hpio,tile \
        -p 4 -r 4K -R 64K --repeat 2 >"$scratch/said"
    grep -q '4 of 4 runs added' "$scratch/said"
    [ ! -e "$to" ]
    "$esker" advise synth ior-strided -p 2 -n 40 -r 8K --file-per-process -o "$trace" >/dev/null
    if ranks "$mpi" "$esker" advise replay "$trace" "mpiio:$to" --collective 2>"$scratch/said"; then
        echo "test_mpi: $mpi made different calls of ranks collective" >&2
        exit 1
    fi
    grep -q 'call 1 of rank 1 is not that of rank 0' "$scratch/said"
    "$esker" advise cleanup "mpiio:$to" >/dev/null || true
    [ ! -e "$to" ]
}

# refuse_launcher MPI DIRECTORY LAUNCHER: ranks that the launcher of another MPI has started fail.
refuse_launcher() {
    local mpi=$1 esker=$2/esker launcher=$3 ranks=2
    if ranks "$launcher" "$esker" workbench run "mpiio:$scratch/none" -P 20 -I 10 2>"$scratch/said"; then
        echo "test_mpi: ranks of $launcher found each other over $mpi" >&2
        exit 1
    fi
    grep -q 'connects this process to no other' "$scratch/said"
    [ ! -e "$scratch/none" ]
}

for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" "mpirun.$mpi" >/dev/null; then
        echo "test_mpi: $mpi is not installed: run scripts/setup.sh mpi" >&2
        exit 1
    fi
    export MPICC=mpicc.$mpi
    # As the tests were built, so that only what knows of MPI is built again.
    build=(--workspace --bins --examples --features "$features,mpi")
    [ -z "$rates" ] || build=(-p esker-comm --features esker-comm/mpi --example mpi_conformance)
    # Their build scripts do not notice that MPICC has changed.
    cargo clean --quiet -p mpi-sys -p mpi --profile "$profile"
    cargo build --quiet "${build[@]}" --profile "$profile"
    keep_programs "$mpi"
    for argument in "${runs[@]}"; do
        # shellcheck disable=SC2086  # no argument at all where it is empty
        ranks "$mpi" "$target/$mpi/examples/mpi_conformance" $argument
    done
    [ -z "$rates" ] || continue
    plasma "$mpi" "$target/$mpi"
    write_particles "$mpi" "$target/$mpi"
    serve_in_job "$mpi" "$target/$mpi"
    for mode in threads initial; do
        "$target/$mpi/examples/mpiio_conformance" "$scratch" $mode
    done
    measure_files "$mpi" "$target/$mpi"
    replay_traces "$mpi" "$target/$mpi"
done
if [ -z "$rates" ]; then
    refuse_launcher openmpi "$target/openmpi" mpich
    refuse_launcher mpich "$target/mpich" openmpi
fi

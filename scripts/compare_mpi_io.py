#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ranks of MPI that write one file in turn on the file system below DIR and in a store of Esker there,
with the same program, pattern and syncs, and prints medians in MB/s and their ratios as Markdown.

usage: scripts/compare_mpi_io.py [--rounds N] [--ranks N] [--megabytes N] [--mpi openmpi|mpich]
                                 [--directory DIR]

The pattern is strided: transfers of all ranks take turns in the file, 4 KiB or 64 KiB each, by
peers/mpi-io. A write ends with MPI_File_sync, and its time includes open and close; reads are of the bytes
that another rank wrote, in the page cache on both sides. `posix` has no MPI-IO between.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "bindings" / "mpi-io"


def output(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True,
                          **options).stdout


def build(mpi, top):
    """Installs the C library below `top`, and builds the library of MPI-IO and the load."""
    output(ROOT / "scripts" / "install_c.sh", top / "usr")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(top / "usr" / "lib" / "pkgconfig")}
    flags = output("pkg-config", "--cflags", "--libs", "esker", env=environment).split()
    output(f"mpicc.{mpi}", "-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", *sorted(SOURCES.glob("*.c")), *flags,
           "-ldl", "-o", top / "mpiio.so")
    output(f"mpicc.{mpi}", "-O2", ROOT / "peers" / "mpi-io" / "mpi-io-load.c", "-o", top / "load")


class Side:
    """A place for the file, and how the load reaches it."""

    def __init__(self, options, top, name):
        self.options, self.top, self.name = options, top, name

    def run(self, *arguments):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        launch = [f"mpirun.{self.options.mpi}", "-n", self.options.ranks]
        file = self.top / "plain"
        if self.name == "esker":
            store = self.top / "store"
            environment |= {"ESKER_STORE": str(store), "ESKER_MPIIO_AT": "/esker", "ESKER_MPIIO_WRITE": "run",
                            "LD_LIBRARY_PATH": str(self.top / "usr" / "lib")}
            esker = ROOT / "target" / "release" / "esker"
            if store.exists():
                output("rm", "-rf", store)
            output(esker, "init", env=environment)
            launch += ["env", f"LD_PRELOAD={self.top / 'mpiio.so'}"]
            file = "/esker/file"
        interface = "POSIX" if self.name == "posix" else "MPIIO"
        said = output(*launch, self.top / "load", "-o", file, "-a", interface, *arguments, env=environment,
                      stderr=subprocess.DEVNULL)
        return json.loads(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--mpi", default="openmpi")
    parser.add_argument("--directory", type=Path, default=ROOT / "target")
    options = parser.parse_args()
    loads = {}
    for size, label in ((4 << 10, "4 KiB"), (64 << 10, "64 KiB")):
        segments = (options.megabytes << 20) // options.ranks // size
        loads[label] = ["-b", size, "-t", size, "-s", segments, "-e", "-C"]
    rates = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as top:
        top = Path(top)
        build(options.mpi, top)
        sides = [Side(options, top, name) for name in ("posix", "mpi-io", "esker")]
        for round_ in range(options.rounds):
            for label, arguments in loads.items():
                for side in sides:
                    print(f"round {round_}: {side.name}: {label}", file=sys.stderr)
                    told = side.run(*arguments)
                    for phase in ("write", "read"):
                        rates.setdefault((label, phase, side.name), []).append(told[f"{phase}_mb_s"])
    median = {key: statistics.median(values) for key, values in rates.items()}
    print(f"{options.mpi}, {options.ranks} ranks, {options.megabytes} MiB, medians of {options.rounds} rounds, MB/s\n")
    print("| transfers | | posix | mpi-io | esker | of mpi-io |\n|---|---|---|---|---|---|")
    for label in loads:
        for phase in ("write", "read"):
            posix, plain, esker = (median[label, phase, name] for name in ("posix", "mpi-io", "esker"))
            print(f"| {label} | {phase} | {posix:.0f} | {plain:.0f} | {esker:.0f} | {esker / plain:.2f} |")


if __name__ == "__main__":
    main()

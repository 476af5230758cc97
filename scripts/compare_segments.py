#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Esker with LevelDB and RocksDB as the index of a shared file: see side_by_side.py.

`esker bench segment --dump` writes the batches of each workload once, and every side puts and gets
exactly those. A put counts until everything is in tables and compaction has settled; gets and
ranges start cold. peers/README.md says what is measured.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from side_by_side import (PEER_NAMES, PEERS, Comparison, Row, Side, add_arguments, columns, report,
                          run_all, touch_memory)


class Step:
    """One operation of a rival; Esker does all in the first."""

    def __init__(self, title, operation, *flags):
        self.title, self.operation, self.flags = title, operation, flags


PUT = Step("put", "segment-put")
STEPS = [
    PUT,
    Step("get in order of the pattern", "segment-get", "--order", "pattern"),
    Step("get in random order", "segment-get", "--order", "random"),
    Step("range", "segment-range"),
]


class Workload:
    """Batches of one pattern: what Esker is told to make them, and what is done with them."""

    def __init__(self, name, pattern, steps=STEPS, batch=None, dump=None):
        self.name, self.pattern, self.steps = name, pattern, steps
        self.batch, self.dump = batch, dump or name.replace(" ", "-")


STRIDED = ["--pattern", "strided"]
WORKLOADS = [
    Workload("strided", STRIDED),
    Workload("tile", ["--pattern", "tile"]),
    Workload("btio-d", ["--pattern", "btio", "--class", "d"]),
    Workload("btio-e", ["--pattern", "btio", "--class", "e"]),
    Workload("random", ["--pattern", "random"]),
    Workload("strided shuffled", STRIDED + ["--shuffled"]),
    Workload("tile shuffled", ["--pattern", "tile", "--shuffled"], [PUT]),
    Workload("btio-d shuffled", ["--pattern", "btio", "--class", "d", "--shuffled"], [PUT]),
    Workload("btio-e shuffled", ["--pattern", "btio", "--class", "e", "--shuffled"], [PUT]),
    Workload("strided by 1", STRIDED, [PUT], batch=1, dump="strided"),
    Workload("strided by 16", STRIDED, [PUT], batch=16, dump="strided"),
]
KINDS = [
    ("put", "puts_per_second", "rate"),
    ("put, acknowledged", "acknowledged_per_second", "rate"),
    ("worst batch of puts", "worst_batch_ms", "milliseconds"),
    ("get in order", "gets_per_second", "rate"),
    ("get at random", "random_gets_per_second", "rate"),
    ("range", "range_entries_per_second", "rate"),
    ("bytes a segment", "store_bytes_per_segment", "bytes"),
]


def esker(name, binary, is_rival):
    def words(step, store, args):
        if step is not PUT:
            return None
        return [str(binary)] + esker_words(args.workload, store, args)
    return Side(name, binary, "cargo build --release -p esker-cli", words, True, is_rival)


def esker_words(workload, store, args):
    words = ["bench", "segment", "--store", store, *workload.pattern, "--json",
             "--clients", str(args.clients), "--segments", str(args.segments)]
    return words + (["--batch", str(workload.batch)] if workload.batch else [])


def peer(engine, options):
    def words(step, store, args):
        words = [str(PEERS[engine]), step.operation, "--store", store, "--json", *step.flags,
                 "--dump", str(args.dump), "--options", options]
        if args.workload.batch:
            words += ["--batch", str(args.workload.batch)]
        if step is PUT:
            return words + ["--durability", args.durability]
        return words + (["--operations", str(args.operations)] if args.operations else [])
    return Side(f"{PEER_NAMES[engine]} {options}", PEERS[engine], "make -C peers", words)


def can_bench(binary):
    """Whether this build of Esker, if there is one, has `bench segment`; says so if not."""
    words = [str(binary), "bench", "segment", "--help"]
    if not binary.exists() or subprocess.run(words, capture_output=True).returncode == 0:
        return True
    print(f"compare: {binary} has no `bench segment`, so Esker is left out", file=sys.stderr)
    return False


def sides(args):
    """The columns."""
    def eskers(name, binary, is_rival):
        return [esker(name, binary, is_rival)] if can_bench(binary) else []
    return columns(args, eskers, lambda engine, options: [peer(engine, options)])


def dump(workload, args, directory):
    """The file with a workload's batches, made by Esker unless it is there; None if it can't be."""
    path = pathlib.Path(args.dumps or directory) / f"{workload.dump}.dump"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=directory) as store:
        words = esker_words(workload, store, args) + ["--dump", str(path)]
        for command in [["init", "--store", store], words]:
            if not args.esker.exists():
                print(f"compare: no batches of {workload.name}: it takes Esker to make them, or "
                      "a directory of them (--dumps)", file=sys.stderr)
                return None
            done = subprocess.run([str(args.esker)] + command, capture_output=True, text=True)
            if done.returncode != 0:
                last = (done.stderr.strip() or "no message").splitlines()[-1]
                print(f"compare: no batches of {workload.name}: `{' '.join(command)}`: {last}",
                      file=sys.stderr)
                return None
    return path if path.exists() else None


def measure(found, workloads, args, directory):
    """[{side name: {workload: figures of all its steps}}], one for each round."""
    if not args.no_warm_up:
        touch_memory(directory)
    merged = [{side.name: {} for side in found} for _ in range(args.rounds)]
    for number, workload in enumerate(workloads):
        path = dump(workload, args, directory)
        if path is None:
            continue
        mine = argparse.Namespace(**vars(args))
        mine.workload, mine.dump, mine.no_warm_up = workload, path, True
        comparison = Comparison(workload.steps, [], workload.name, None)
        for into, one in zip(merged, run_all(found, comparison, mine, directory)):
            for side, steps in one.items():
                figures = {}
                for step in steps.values():
                    figures.update(step)
                if figures:
                    into[side][workload.name] = figures
        if not args.dumps and workload.dump not in [w.dump for w in workloads[number + 1:]]:
            path.unlink()
    return merged


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=16 << 20, metavar="N",
                        help="default 16777216")
    parser.add_argument("--clients", type=int, default=64, metavar="C", help="default 64")
    parser.add_argument("--operations", type=int, default=0, metavar="M",
                        help="gets of a rival (default all; the first M in order of asking)")
    parser.add_argument("--workloads", default=",".join(w.name for w in WORKLOADS), metavar="LIST",
                        help="comma-separated (default all)")
    parser.add_argument("--dumps", type=pathlib.Path, metavar="DIR",
                        help="keep the batches in DIR, and use those that are there")
    add_arguments(parser)
    args = parser.parse_args()
    if min(args.segments, args.clients, args.rounds) < 1:
        parser.error("counts start at 1")
    unknown = set(args.workloads.split(",")) - {workload.name for workload in WORKLOADS}
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    if args.dumps:
        args.dumps.mkdir(parents=True, exist_ok=True)
    return args


def main():
    args = parse_arguments()
    found = sides(args)
    wanted = [workload for workload in WORKLOADS if workload.name in args.workloads.split(",")]
    rows = [Row(f"{title}, {workload.name}", workload.name, field, show)
            for title, field, show in KINDS for workload in wanted]
    caches = "dropped before" if os.geteuid() == 0 else "not dropped (only root may) before"
    headline = (f"Segments of one shared file by {args.clients} clients, {args.segments:,} asked "
                f"for, durability {args.durability}, page cache {caches} gets and ranges")
    tuned = [side.name for side in found if side.name.endswith(" tuned")]
    report(found, rows, headline, args, lambda directory: measure(found, wanted, args, directory),
           best_of=tuned)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares creates, stats, listings and removals of Esker and its rivals: see side_by_side.py.

Each side runs create, stat (warm, absent, cold), list and remove on one store. peers/README.md says
what is measured.
"""

import argparse

from side_by_side import PEER_NAMES, PEERS, Comparison, Row, Side, add_arguments, columns, main


class Step:
    """One operation of the workload."""

    def __init__(self, title, operation, *flags):
        self.title, self.operation, self.flags = title, operation, flags


STEPS = [
    Step("create", "create"),
    Step("stat, warm", "stat"),
    Step("stat of absent names, warm", "stat", "--absent"),
    Step("stat, cold", "stat", "--cold"),
    Step("stat of absent names, cold", "stat", "--cold", "--absent"),
    Step("list, warm", "list"),
    Step("list, cold", "list", "--cold"),
    Step("remove", "remove"),
]

ROWS = [
    Row("create", "create"),
    Row("create, settled", "create", "settled_seconds"),
    *[Row(step.title, step.title) for step in STEPS[1:]],
    Row("create, CPU a file", "create", "cpu_seconds", "microseconds"),
    Row("bytes a record in tables", "create", "table_bytes_per_record", "bytes"),
    Row("bytes written a record", "create", "store_bytes_written", "bytes each"),
    Row("peak memory of create", "create", "peak_rss_bytes", "MiB"),
    Row("reads a stat, cold", "stat, cold", "store_reads_per_operation", "number"),
    Row("reads an absent stat, cold", "stat of absent names, cold", "store_reads_per_operation",
        "number"),
]


def command(first, flags):
    """The command of a side that begins with `first` and adds `flags` to everything."""
    def words(step, store, args):
        words = first + [step.operation, "--store", store, "--json"]
        if step.operation == "create":
            words += ["--files", str(args.files), "--directories", str(args.directories)]
        if step.operation == "stat":
            words += ["--operations", str(min(args.operations, args.files))]
        words += ["--threads", str(args.threads)]
        if step.operation in ("create", "remove"):
            words += ["--durability", args.durability]
        return words + flags + list(step.flags)
    return words


def sides(args):
    """The columns."""
    def esker(name, binary, is_rival):
        return [Side(name, binary, "cargo build --release",
                     command([str(binary), "bench"], []), True, is_rival)]

    def peer(engine, options):
        return [Side(f"{PEER_NAMES[engine]} {options}", PEERS[engine], "make -C peers",
                     command([str(PEERS[engine])], ["--options", options]))]
    return columns(args, esker, peer)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--directories", type=int, default=1_000, metavar="D")
    parser.add_argument("--threads", type=int, default=1, metavar="T")
    parser.add_argument("--operations", type=int, default=1_000_000, metavar="M",
                        help="stats a run (default 1000000)")
    add_arguments(parser)
    args = parser.parse_args()
    if min(args.files, args.directories, args.threads, args.operations, args.rounds) < 1:
        parser.error("counts start at 1")
    return args


def shorten(args):
    args.files = max(args.files // 10, 1)
    return args


if __name__ == "__main__":
    ARGS = parse_arguments()
    HEADLINE = (f"{ARGS.files:,} files in {ARGS.directories:,} directories, {ARGS.threads} "
                f"thread{'s' * (ARGS.threads > 1)}, durability {ARGS.durability}")
    main(sides(ARGS), Comparison(STEPS, ROWS, HEADLINE, shorten), ARGS)

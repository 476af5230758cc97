#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares stats in namespaces that outgrow the cache, of Esker and its rivals: see side_by_side.py.

Every side has the same cache for blocks, and the kernel's pages are warm: each process lists
everything and looks up a sixteenth of the names before it is timed. Esker looks up names in an open
session. Its first look-ups find the runs of tables that creates left; many look-ups later the session
has merged them in the background, which the rates of that step show second by second. The rivals
compact in the background as they do by themselves, until nothing is left to do, before the first
look-ups, and are compacted whole before the last ones.
"""

import argparse

from side_by_side import PEER_NAMES, PEERS, Comparison, Row, Side, add_arguments, columns, main

CREATE, FIRST, MERGE, LAST = "create", "stat, as created", "merge", "stat, merged"


class Step:
    """One step, which each side does in its own way."""

    def __init__(self, title):
        self.title, self.flags = title, ()


STEPS = [Step(title) for title in (CREATE, FIRST, MERGE, LAST)]

ROWS = [
    Row("create", CREATE),
    Row(FIRST, FIRST),
    Row("stat after a full compaction (Esker: after the merge that stats have paid for)", LAST),
    Row("seconds of compaction (Esker: of stats until the merge, and after it)", MERGE, "seconds",
        "number"),
    Row("memory of the last stats, at most", LAST, "peak_rss_bytes", "MiB"),
    Row("bytes a record in tables", CREATE, "table_bytes_per_record", "bytes"),
]


def size_flags(args):
    return ["--files", str(args.files), "--directories", str(args.directories),
            "--threads", str(args.threads), "--durability", args.durability]


def stat_flags(operations, args):
    return ["--operations", str(operations), "--threads", str(args.threads)]


def esker_words(binary, step, store, args):
    """What a build of Esker runs for a step."""
    if step.title == CREATE:
        words = ["create", "--keep-session"] + size_flags(args)
    else:
        # Look-ups before and after the merge are too few to pay for one.
        count = args.merging_operations if step.title == MERGE else args.operations
        words = ["stat", "--session", "--cache", str(args.cache_bytes)] + stat_flags(count, args)
    return [str(binary), "bench"] + words + ["--store", store, "--json"]


def peer_command(engine, options):
    """The command of a rival with these options."""
    cache = {"leveldb": "cache_bytes", "rocksdb": "clock_bytes"}[engine]

    def words(step, store, args):
        if step.title == CREATE:
            operation = ["create"] + size_flags(args)
        elif step.title == MERGE:
            operation = ["compact"]
        else:
            operation = ["stat", "--set", f"{cache}={args.cache_bytes}"]
            operation += stat_flags(args.operations, args)
        return [str(PEERS[engine])] + operation + ["--options", options, "--store", store, "--json"]
    return words


def sides(args):
    """The columns."""
    def esker(name, binary, is_rival):
        def words(step, store, args):
            return esker_words(binary, step, store, args)
        return [Side(name, binary, "cargo build --release", words, True, is_rival)]

    def peer(engine, options):
        return [Side(f"{PEER_NAMES[engine]} {options}", PEERS[engine], "make -C peers",
                     peer_command(engine, options))]
    return columns(args, esker, peer)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=40_000_000, metavar="N")
    parser.add_argument("--directories", type=int, default=1_000, metavar="D")
    parser.add_argument("--threads", type=int, default=1, metavar="T")
    parser.add_argument("--operations", type=int, default=5_000_000, metavar="M",
                        help="stats before, and after, the merge (default 5000000)")
    parser.add_argument("--merging-operations", type=int, default=30_000_000, metavar="M",
                        help="stats of Esker that pay for the merge (default 30000000)")
    parser.add_argument("--cache-bytes", type=int, default=256 << 20, metavar="B",
                        help="cache of every side (default 256 MiB)")
    add_arguments(parser)
    parser.set_defaults(options="tuned")
    args = parser.parse_args()
    counts = (args.files, args.directories, args.threads, args.operations, args.rounds,
              args.merging_operations)
    if min(counts) < 1:
        parser.error("counts start at 1")
    return args


def shorten(args):
    args.files = max(args.files // 100, 1)
    args.operations, args.merging_operations = args.files, args.files
    return args


if __name__ == "__main__":
    ARGS = parse_arguments()
    HEADLINE = (f"{ARGS.files:,} files in {ARGS.directories:,} directories, {ARGS.threads} "
                f"thread{'s' * (ARGS.threads > 1)}, {ARGS.cache_bytes >> 20} MiB of cache")
    main(sides(ARGS), Comparison(STEPS, ROWS, HEADLINE, shorten), ARGS)

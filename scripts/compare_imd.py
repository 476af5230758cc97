#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares indexed directories with LevelDB and RocksDB as indexes of partitions: side_by_side.py.

The workload of DeltaFS thesis section 5.3.1: ranks write records with 8-byte keys, each goes to its
key's partition and is indexed there; then random keys are read. The rivals have one instance for
each partition and no log, since an indexed directory promises nothing before the end of an epoch
either. peers/README.md says what is measured.
"""

import argparse

from side_by_side import PEER_NAMES, PEERS, Comparison, Row, Side, add_arguments, columns, main

TARGET = "bench:/particles"


class Step:
    """One operation of the workload."""

    def __init__(self, title, operation, *flags):
        self.title, self.operation, self.flags = title, operation, flags

    @property
    def is_write(self):
        return self.operation == "imd-write"


STEPS = [
    Step("write", "imd-write"),
    Step("get, cold", "imd-get", "--cold"),
    Step("get, warm", "imd-get"),
]

ROWS = [
    Row("write, all settled", "write", "settled_seconds"),
    Row("write, acknowledged", "write"),
    Row("write, CPU a record", "write", "cpu_seconds", "microseconds"),
    Row("bytes written a record", "write", "store_bytes_written", "bytes each"),
    Row("index, bits a key", "write", "index_bits_per_key", "bits"),
    Row("peak memory of write", "write", "peak_rss_bytes", "MiB"),
    Row("get, cold", "get, cold"),
    Row("tables read a get, cold", "get, cold", "table_reads_per_operation", "number"),
    Row("get, warm", "get, warm"),
]


def numbers(step, args):
    """What every side is told alike."""
    if not step.is_write:
        return ["--operations", str(min(args.operations, args.keys))] + list(step.flags)
    return ["--keys", str(args.keys), "--ranks", str(args.ranks), "--epochs", str(args.epochs),
            "--value-bytes", str(args.value_bytes)]


def esker(name, binary, file_format, is_rival):
    def words(step, store, args):
        verb = ["bench", "imd-write"] if step.is_write else ["bench", "imd-get"]
        words = [str(binary)] + verb + [TARGET, "--store", store, "--json"] + numbers(step, args)
        return words + (["--format", file_format] if step.is_write else [])
    return Side(f"{name} {file_format}", binary, "cargo build --release -p esker-cli", words, True,
                is_rival)


def peer(engine, options, *flags):
    def words(step, store, args):
        words = [str(PEERS[engine]), step.operation, "--store", store, "--json"]
        words += numbers(step, args) + ["--options", options, *flags]
        return words + (["--durability", args.durability] if step.is_write else [])
    name = f"{PEER_NAMES[engine]} {options}" + (", not compacted" if flags else "")
    return Side(name, PEERS[engine], "make -C peers", words)


def sides(args):
    """The columns."""
    last = args.options.split(",")[-1]

    def peers(engine, options):
        # LevelDB has no setting for it.
        is_compared = engine == "rocksdb" and options == last
        uncompacted = [peer(engine, options, "--no-compaction")] if is_compared else []
        return [peer(engine, options)] + uncompacted

    def eskers(name, binary, is_rival):
        return [esker(name, binary, file_format, is_rival) for file_format in args.formats.split(",")]
    return columns(args, eskers, peers)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=10_000_000, metavar="N",
                        help="records of an epoch, over all ranks (default 10000000)")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="default 1")
    parser.add_argument("--epochs", type=int, default=1, metavar="E", help="default 1")
    parser.add_argument("--value-bytes", type=int, default=40, metavar="V", help="default 40")
    parser.add_argument("--operations", type=int, default=100_000, metavar="M",
                        help="gets a run (default 100000)")
    parser.add_argument("--formats", default="base,static", metavar="LIST",
                        help="of Esker (default base,static)")
    add_arguments(parser)
    parser.set_defaults(durability="none")
    args = parser.parse_args()
    if min(args.keys, args.ranks, args.epochs, args.operations, args.rounds) < 1:
        parser.error("counts start at 1")
    return args


def shorten(args):
    args.keys = max(args.keys // 10, 1)
    return args


if __name__ == "__main__":
    ARGS = parse_arguments()
    HEADLINE = (f"{ARGS.keys:,} records of {ARGS.value_bytes} bytes in each of {ARGS.epochs} "
                f"epoch{'s' * (ARGS.epochs > 1)}, {ARGS.ranks} rank{'s' * (ARGS.ranks > 1)}")
    main(sides(ARGS), Comparison(STEPS, ROWS, HEADLINE, shorten), ARGS)

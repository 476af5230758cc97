# SPDX-License-Identifier: Apache-2.0
"""Runs several engines in turn on one machine and prints how many times better Esker is.

Each round takes every side once, in rotated order, each in a fresh directory of the same device.
Cells are medians over the rounds. Before the first round memory and page cache are touched once
and a short run of every side is thrown away, because the first touch of memory is slow in a fresh
virtual machine. A side that isn't built is left out and named.
"""

import argparse
import json
import mmap
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = {"leveldb": ROOT / "peers/target/peer-leveldb",
         "rocksdb": ROOT / "peers/target/release/peer-rocksdb"}
PEER_NAMES = {"leveldb": "LevelDB", "rocksdb": "RocksDB"}
WARM_BYTES_MAX = 4 << 30
TABLE_WIDTH_MIN = 12


class Side:
    """One engine with one set of options: a column of the table.

    `command(step, store, args)` is what it runs for a step; None if it has nothing to run. Rivals
    are what Esker is compared with, an earlier build of Esker included.
    """

    def __init__(self, name, binary, build, command, is_esker=False, is_rival=True):
        self.name, self.binary, self.build = name, binary, build
        self.command, self.is_esker, self.is_rival = command, is_esker, is_rival


class Row:
    """A row of the table: a field of what a step printed, and how to show it."""

    def __init__(self, title, step, field="operations_per_second", show="rate"):
        self.title, self.step, self.field, self.show = title, step, field, show


class Comparison:
    """Steps that every side runs in order on one store, the rows read from them, and a headline.

    The first step makes the store's contents; without it the others are left out. `shorten(args)`
    are the arguments of the discarded runs.
    """

    def __init__(self, steps, rows, headline, shorten):
        self.steps, self.rows, self.headline, self.shorten = steps, rows, headline, shorten


def add_arguments(parser):
    """The arguments that every comparison takes."""
    parser.add_argument("--rounds", type=int, default=3, metavar="R",
                        help="runs of each engine; the table holds medians (default 3)")
    parser.add_argument("--durability", choices=["none", "async", "always"], default="async")
    parser.add_argument("--engines", default="esker,leveldb,rocksdb", metavar="LIST",
                        help="comma-separated (default esker,leveldb,rocksdb)")
    parser.add_argument("--options", default="default,tuned", metavar="LIST",
                        help="of the rivals (default default,tuned)")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "compare",
                        help="where stores are made and removed (default target/compare)")
    parser.add_argument("--esker", type=pathlib.Path, default=ROOT / "target/release/esker")
    parser.add_argument("--before", type=pathlib.Path, metavar="FILE",
                        help="an earlier build of Esker, as one more column")
    parser.add_argument("--no-warm-up", action="store_true",
                        help="skip touching memory and the discarded runs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="write every run's figures to FILE")


def built(sides):
    """The sides that can run; says which can't and why."""
    for side in [side for side in sides if not side.binary.exists()]:
        print(f"compare: {side.name} isn't built, so it's left out: run `{side.build}`",
              file=sys.stderr)
    return [side for side in sides if side.binary.exists()]


def columns(args, esker, peer):
    """The sides that can run, for the engines asked for: `esker(name, binary, is_rival)` are those
    of a build of Esker, and `peer(engine, options)` those of a rival."""
    found = []
    for engine in args.engines.split(","):
        if engine == "esker":
            found += esker("Esker", args.esker, False)
            found += esker("before", args.before, True) if args.before else []
        elif engine in PEERS:
            found += [side for options in args.options.split(",") for side in peer(engine, options)]
        else:
            sys.exit(f"compare: no engine {engine}: esker, leveldb or rocksdb")
    return built(found)


class Progress:
    """One line on a terminal, nothing in a pipe."""

    def __init__(self, total):
        self.total, self.done, self.shown = total, 0, sys.stderr.isatty()

    def say(self, text):
        if self.shown:
            sys.stderr.write(f"\r\033[K[{self.done}/{self.total}] {text}")
            sys.stderr.flush()

    def advance(self):
        self.done += 1

    def clear(self):
        if self.shown:
            sys.stderr.write("\r\033[K")


def run_json(command):
    """The figures a command printed; None, with its last words on stderr, if it failed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        try:
            return json.loads(lines[-1])
        except json.JSONDecodeError:
            pass
    words = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
    print(f"\ncompare: exit {done.returncode} from `{' '.join(command)}`: {words}",
          file=sys.stderr)
    return None


def drop_caches():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        pass  # only root may; every engine then sees the same warm kernel


def memory_available():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def touch_memory(directory):
    """Makes the machine's memory and page cache real before anything is timed."""
    count = min(memory_available() // 3, WARM_BYTES_MAX) & ~0xFFFFF
    if count == 0:
        return
    with mmap.mmap(-1, count) as memory:
        for page in range(0, count, mmap.PAGESIZE):
            memory[page] = 1
    count = min(count, shutil.disk_usage(directory).free // 4) & ~0xFFFFF
    chunk = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory) as scratch:
        for _ in range(count >> 20):
            scratch.write(chunk)


def run_side(side, comparison, args, directory, progress, label):
    """One fresh store through all steps: {step title: figures}."""
    store = tempfile.mkdtemp(prefix=f"{side.name.replace(' ', '-').lower()}-", dir=directory)
    results = {}
    try:
        drop_caches()
        if side.is_esker:
            words = [str(side.binary), "init", "--store", store]
            made = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True)
            if made.returncode != 0:
                print(f"\ncompare: `{' '.join(words)}`: {made.stderr.strip()}", file=sys.stderr)
        for step in comparison.steps:
            progress.say(f"{label}: {side.name}, {step.title}")
            if "--cold" in step.flags:  # some sides drop only what their process holds
                drop_caches()
            if results.get(comparison.steps[0].title, {}) is not None:  # the others need the first
                words = side.command(step, store, args)
                results[step.title] = run_json(words) if words else {}
            progress.advance()
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return {title: figures for title, figures in results.items() if figures}


def run_all(found, comparison, args, directory):
    """[{side name: {step title: figures}}], one for each round."""
    warm_sides = 0 if args.no_warm_up else len(found)
    progress = Progress(len(comparison.steps) * (warm_sides + args.rounds * len(found)))
    if warm_sides:
        progress.say("touching memory")
        touch_memory(directory)
        short = comparison.shorten(argparse.Namespace(**vars(args)))
        for side in found:
            run_side(side, comparison, short, directory, progress, "discarded")
    rounds = []
    for number in range(args.rounds):
        turn = number % len(found)
        rounds.append({
            side.name: run_side(side, comparison, args, directory, progress,
                                f"round {number + 1} of {args.rounds}")
            for side in found[turn:] + found[:turn]
        })
    progress.clear()
    return rounds


def median(rounds, side, step, field):
    values = [one[side][step][field] for one in rounds
              if field in one.get(side, {}).get(step, {})]
    return statistics.median(values) if values else None


def cell_value(rounds, side, row):
    """(value, text, whether more is better) of one cell; None if it wasn't measured."""
    show = row.show
    value = median(rounds, side, row.step, row.field)
    operations = median(rounds, side, row.step, "operations")
    if row.field == "settled_seconds" and value is None:  # nothing is left over to settle
        value = median(rounds, side, row.step, "seconds")
    if value is None or not operations:
        return None
    if show == "rate":
        rate = value if row.field.endswith("_per_second") else operations / value
        return rate, f"{rate / 1e6:.2f} M/s" if rate >= 1e5 else f"{rate / 1e3:.1f} k/s", True
    if show == "microseconds":
        value = value / operations * 1e6
        return value, f"{value:.2f} µs", False
    if show == "bytes each":
        value, show = value / operations, "bytes"
    if show == "bytes":
        return value, f"{value:.1f} B" if value >= 1 else f"{value:.3f} B", False
    if show == "bits":
        return value, f"{value:.1f} bit", False
    if show == "milliseconds":
        return value, f"{value:.2f} ms", False
    if show == "MiB":
        return value, f"{value / 2**20:.0f} MiB", False
    return value, f"{value:.3f}", False


def better(ours, other):
    """How many times better one cell's value is than another's."""
    if not ours or not other or not ours[0] or not other[0]:
        return None
    return ours[0] / other[0] if ours[2] else other[0] / ours[0]


def table(rounds, found, rows_wanted, best_of):
    """Rows of text: each rival's cell also says how many times better Esker is, as the first of its
    columns does it, and with `best_of` a last column says it of the best of those sides."""
    esker = next((side.name for side in found if not side.is_rival), None)
    last = ["Esker over the best tuned"] if esker and best_of else []
    rows = [[""] + [side.name for side in found] + last]
    for row in rows_wanted:
        ours = cell_value(rounds, esker, row) if esker else None
        cells = [row.title]
        for side in found:
            cell = cell_value(rounds, side.name, row)
            ratio = better(ours, cell) if side.is_rival else None
            digits = 1 if ratio and ratio >= 2 else 2
            cells.append("–" if cell is None else
                         cell[1] + (f" ({ratio:.{digits}f}×)" if ratio else ""))
        if set(cells[1:]) == {"–"}:
            continue
        if last:
            ratios = [better(ours, cell_value(rounds, name, row)) for name in best_of]
            ratios = [ratio for ratio in ratios if ratio]
            cells.append(f"{min(ratios):.2f}×" if ratios else "–")
        rows.append(cells)
    return rows


def machine():
    model = "processor unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{model}, {os.cpu_count()} cores, {memory / 2**30:.0f} GiB"


def print_table(rows, headline, args):
    print(f"{headline}, medians of {args.rounds}; {machine()}.")
    print("In brackets: how many times better Esker is.\n")
    if args.markdown:
        rows = [rows[0], ["---"] * len(rows[0])] + rows[1:]
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    widths = [max(TABLE_WIDTH_MIN, *(len(row[column]) for row in rows))
              for column in range(len(rows[0]))]
    for row in rows:
        print(row[0].ljust(widths[0]) + "".join(
            "  " + text.rjust(width) for text, width in zip(row[1:], widths[1:])))


def report(found, rows, headline, args, measure, best_of=()):
    """Prints the table of what `measure(directory)` returns: figures of rounds, as `run_all`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that stores are removed
    if not found:
        sys.exit("compare: nothing is built")
    args.directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="compare-", dir=args.directory) as directory:
            rounds = measure(directory)
    except KeyboardInterrupt:
        sys.exit(130)
    if not any(figures for one in rounds for figures in one.values()):
        sys.exit("compare: no engine finished a run")
    print_table(table(rounds, found, rows, best_of), headline, args)
    if args.json:
        settings = {name: str(value) for name, value in vars(args).items()}
        figures = {"machine": machine(), "arguments": settings, "rounds": rounds}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def main(found, comparison, args):
    """Runs everything and prints the table."""
    report(found, comparison.rows, comparison.headline, args,
           lambda directory: run_all(found, comparison, args, directory))

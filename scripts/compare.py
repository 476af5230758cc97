#!/usr/bin/env python3
"""Runs the same workload on Esker and on its rivals in turn, and prints the ratios.

Each round takes every engine once, in rotated order, each in a fresh directory of the same
device: create, stat (warm, absent, cold), list, remove. Cells are medians over the rounds.
Before the first round memory and page cache are touched once and a short run of every engine
is thrown away, because the first touch of memory is slow in a fresh virtual machine.

An engine that isn't built is left out and named. peers/README.md says what is measured.
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
WARM_BYTES_MAX = 4 << 30
TABLE_WIDTH_MIN = 12


class Side:
    """One engine with one set of options: a column of the table."""

    def __init__(self, name, binary, options, build):
        self.name, self.binary, self.options, self.build = name, binary, options, build

    @property
    def is_esker(self):
        return self.options is None

    def command(self, step, store, args):
        words = [str(self.binary)] + (["bench"] if self.is_esker else [])
        words += [step.operation, "--store", store, "--json"]
        if step.operation == "create":
            words += ["--files", str(args.files), "--directories", str(args.directories)]
        if step.operation == "stat":
            words += ["--operations", str(min(args.operations, args.files))]
        words += ["--threads", str(args.threads)]
        if step.operation in ("create", "remove"):
            words += ["--durability", args.durability]
        if not self.is_esker:
            words += ["--options", self.options]
        return words + list(step.flags)


class Step:
    """One operation of the workload: a row of the table."""

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

# Rows read from the steps above besides their rate: (title, step's title, field, how to show).
DETAILS = [
    ("create, settled", "create", "settled_seconds", "rate"),
    ("create, CPU a file", "create", "cpu_seconds", "microseconds"),
    ("bytes a record in tables", "create", "table_bytes_per_record", "bytes"),
    ("bytes written a record", "create", "store_bytes_written", "bytes each"),
    ("peak memory of create", "create", "peak_rss_bytes", "MiB"),
    ("reads a stat, cold", "stat, cold", "store_reads_per_operation", "number"),
    ("reads an absent stat, cold", "stat of absent names, cold", "store_reads_per_operation",
     "number"),
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--directories", type=int, default=1_000, metavar="D")
    parser.add_argument("--threads", type=int, default=1, metavar="T")
    parser.add_argument("--operations", type=int, default=1_000_000, metavar="M",
                        help="stats a run (default 1000000)")
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
    parser.add_argument("--no-warm-up", action="store_true",
                        help="skip touching memory and the discarded runs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="write every run's figures to FILE")
    args = parser.parse_args()
    if min(args.files, args.directories, args.threads, args.operations, args.rounds) < 1:
        parser.error("counts start at 1")
    return args


def sides(args):
    """The columns that can run; says which can't and why."""
    target = ROOT / "peers" / "target"
    binaries = {"leveldb": target / "peer-leveldb", "rocksdb": target / "release/peer-rocksdb"}
    found = []
    for engine in args.engines.split(","):
        if engine == "esker":
            found.append(Side("Esker", args.esker, None, "cargo build --release"))
        elif engine in binaries:
            name = {"leveldb": "LevelDB", "rocksdb": "RocksDB"}[engine]
            found += [Side(f"{name} {options}", binaries[engine], options, "make -C peers")
                      for options in args.options.split(",")]
        else:
            sys.exit(f"compare: no engine {engine}: esker, leveldb or rocksdb")
    for side in [side for side in found if not side.binary.exists()]:
        print(f"compare: {side.name} isn't built, so it's left out: run `{side.build}`",
              file=sys.stderr)
        found.remove(side)
    return found


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


def run_side(side, args, directory, progress, label):
    """One fresh store through all steps: {step title: figures}."""
    store = tempfile.mkdtemp(prefix=f"{side.name.replace(' ', '-').lower()}-", dir=directory)
    results = {}
    try:
        drop_caches()
        if side.is_esker:
            words = [str(side.binary), "init", "--store", store]
            made = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if made.returncode != 0:
                print(f"\ncompare: `{' '.join(words)}`: {made.stderr.strip()}", file=sys.stderr)
        for step in STEPS:
            progress.say(f"{label}: {side.name}, {step.title}")
            if results.get(STEPS[0].title, {}) is not None:  # nothing to stat without create
                results[step.title] = run_json(side.command(step, store, args))
            progress.advance()
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return {title: figures for title, figures in results.items() if figures}


def run_all(found, args, directory):
    """[{side name: {step title: figures}}], one for each round."""
    warm_sides = 0 if args.no_warm_up else len(found)
    progress = Progress(len(STEPS) * (warm_sides + args.rounds * len(found)))
    if warm_sides:
        progress.say("touching memory")
        touch_memory(directory)
        short = argparse.Namespace(**vars(args))
        short.files = max(args.files // 10, 1)
        for side in found:
            run_side(side, short, directory, progress, "discarded")
    rounds = []
    for number in range(args.rounds):
        turn = number % len(found)
        rounds.append({
            side.name: run_side(side, args, directory, progress,
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
    title, step, field, show = row
    value = median(rounds, side, step, field)
    operations = median(rounds, side, step, "operations")
    if field == "settled_seconds" and value is None:  # nothing is left over to settle
        value = median(rounds, side, step, "seconds")
    if value is None or not operations:
        return None
    if show == "rate":
        rate = value if field == "operations_per_second" else operations / value
        return rate, f"{rate / 1e6:.2f} M/s" if rate >= 1e5 else f"{rate / 1e3:.1f} k/s", True
    if show == "microseconds":
        value = value / operations * 1e6
        return value, f"{value:.2f} µs", False
    if show == "bytes each":
        value, show = value / operations, "bytes"
    if show == "bytes":
        return value, f"{value:.1f} B", False
    if show == "MiB":
        return value, f"{value / 2**20:.0f} MiB", False
    return value, f"{value:.3f}", False


def table(rounds, found):
    """Rows of text: each rival's cell also says how many times better Esker is."""
    rows = [[""] + [side.name for side in found]]
    wanted = [(step.title, step.title, "operations_per_second", "rate") for step in STEPS]
    esker = next((side.name for side in found if side.is_esker), None)
    for row in wanted[:1] + DETAILS[:1] + wanted[1:] + DETAILS[1:]:
        ours = cell_value(rounds, esker, row) if esker else None
        cells = [row[0]]
        for side in found:
            cell = cell_value(rounds, side.name, row)
            if cell is None:
                cells.append("–")
                continue
            value, text, more_is_better = cell
            if ours and not side.is_esker and value and ours[0]:
                ratio = ours[0] / value if more_is_better else value / ours[0]
                text += f" ({ratio:.1f}×)"
            cells.append(text)
        if set(cells[1:]) != {"–"}:
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


def print_table(rows, args):
    print(f"{args.files:,} files in {args.directories:,} directories, {args.threads} "
          f"thread{'s' * (args.threads > 1)}, durability {args.durability}, "
          f"medians of {args.rounds}; {machine()}.")
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


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that stores are removed
    found = sides(args)
    if not found:
        sys.exit("compare: nothing is built")
    args.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compare-", dir=args.directory) as directory:
        rounds = run_all(found, args, directory)
    if not any(figures for one in rounds for figures in one.values()):
        sys.exit("compare: no engine finished a run")
    print_table(table(rounds, found), args)
    if args.json:
        settings = {name: str(value) for name, value in vars(args).items()}
        figures = {"machine": machine(), "arguments": settings, "rounds": rounds}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs esker workbench, fio, bonnie++, dbench and, where the machine has them, mdtest and md-workbench
in turn on one directory, and prints rates and latencies side by side as Markdown; every round goes to
JSON.

usage: scripts/compare_workbench.py [--rounds N] [--files N] [--ranks N] [--seconds N]
                                    [--directory DIR] [--json FILE] [--esker FILE] [--tools LIST]

DIR is on tmpfs by default (/dev/shm). Programs take turns within a round, so a machine that slows down
slows all of them. Rates are medians over rounds, in calls per second of all ranks; latencies are
medians of each round's quantiles. Ratios compare with esker workbench's row for the same work.

Where the work agrees, and where it does not:
  fio        create, stat, delete: each rank in a directory of its own, as mdtest-easy. fio stats and
             deletes files of 4 KiB, esker empty ones. Its rate has the time that fio spends between
             calls in it, which grows with the files and exceeds the calls' own: compare its latencies.
  bonnie++   create, stat, delete in sequential order by one process in one directory, compared with
             esker at one rank; reports whole-phase rates and the slowest call, no quantiles.
  mdtest     create, stat, delete as mdtest-easy, and with 3901 bytes in one directory as mdtest-hard;
             reports no quantiles.
  md-workbench  the benchmark phase: stat, read, delete, create of files of 3901 bytes. Its quantiles
             are the times of the same calls as esker's, or of the next slower ones.
  dbench     replays a file server's trace; its mix of calls agrees with no phase of esker, so its rows
             have no ratio.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Debian installs bonnie++ here.
os.environ["PATH"] += ":/usr/sbin"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

FILE_BYTES = 3901
IO500_NAMES = {
    "mdtest-easy-write": "easy create", "mdtest-easy-stat": "easy stat",
    "mdtest-easy-delete": "easy delete", "mdtest-hard-write": "hard create",
    "mdtest-hard-stat": "hard stat", "mdtest-hard-read": "hard read",
    "mdtest-hard-delete": "hard delete",
}
# The unit of bonnie++'s -n.
BONNIE_FILES = 1024


def run(*words):
    """Runs a program and returns what it prints; ends the comparison if the program fails."""
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"compare: {' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def figures(rate, p50=None, p99=None, worst=None):
    """Calls per second, and latencies in microseconds."""
    return {"rate": rate, "p50": p50, "p99": p99, "max": worst}


def quantile(distribution, share):
    """A quantile of esker's buckets, in microseconds."""
    target, below = max(1, -(-distribution["count"] * share // 1)), 0
    for last, count in distribution["buckets"]:
        below += count
        if below >= target:
            return min(max(last, distribution["min_ns"]), distribution["max_ns"]) / 1e3
    return distribution["max_ns"] / 1e3


def phase_figures(phase, operation):
    found = next(found for found in phase["operations"] if found["operation"] == operation)
    if found["failures"]:
        sys.exit(f"compare: esker: {operation} failed: {found['first_failure']}")
    service = found["service"]
    return figures(service["count"] / phase["seconds"], quantile(service, 0.5),
                   quantile(service, 0.99), service["max_ns"] / 1e3)


def esker_io500(args, at, ranks):
    """The rows of the phases of mdtest."""
    words = [args.esker, "--json", "workbench", "run", at / "set", "--io500", "-N", ranks]
    result = json.loads(run(*words, "-P", args.files))
    rows = {}
    for phase in result["phases"]:
        if phase["plan"]["kind"] in IO500_NAMES:
            operation = phase["operations"][0]["operation"]
            rows[IO500_NAMES[phase["plan"]["kind"]]] = phase_figures(phase, operation)
    return rows


def esker(args, at):
    rows = esker_io500(args, at, args.ranks)
    single = esker_io500(args, at, 1)
    rows |= {name.replace("easy", "one process"): figures for name, figures in single.items()
             if name.startswith("easy")}
    words = [args.esker, "--json", "workbench", "run", at / "set", "-N", args.ranks]
    words += ["-P", args.files, "-I", args.files // 2, "-S", FILE_BYTES]
    phases = json.loads(run(*words))["phases"]
    benchmark = next(phase for phase in phases if phase["plan"]["kind"] == "benchmark")
    calls = sum(found["service"]["count"] for found in benchmark["operations"])
    rows["benchmark"] = figures(calls / benchmark["seconds"])
    for operation in ["stat", "read", "delete", "create"]:
        rows[f"benchmark {operation}"] = phase_figures(benchmark, operation)
    return rows


def fio(args, at):
    rows = {}
    for name in ["create", "stat", "delete"]:
        words = ["fio", "--output-format=json", f"--ioengine=file{name}", "--rw=write", "--bs=4k",
                 "--filesize=4k", f"--nrfiles={args.files}", "--openfiles=1", "--thread",
                 "--filename_format=file.$filenum", "--fallocate=none"]
        for rank in range(args.ranks):
            directory = at / f"rank-{rank}"
            # Each engine makes the files that it needs itself, outside the measured time.
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            words += [f"--name=rank-{rank}", f"--directory={directory}"]
        printed = run(*words)
        jobs = json.loads(printed[printed.index("{"):])["jobs"]
        latencies = [job["write"]["clat_ns"] for job in jobs]
        middle = lambda key: statistics.mean(found["percentile"][key] for found in latencies) / 1e3
        # fio's own rate has a resolution of a millisecond.
        seconds = max(job["write"]["runtime"] for job in jobs) / 1e3
        calls = sum(job["write"]["total_ios"] for job in jobs)
        rows[f"easy {name}"] = figures(calls / max(seconds, 1e-3), middle("50.000000"),
                                       middle("99.000000"),
                                       max(found["max"] for found in latencies) / 1e3)
    return rows


def microseconds(text):
    number, unit = re.fullmatch(r"(\d+)(us|ms|s)", text).groups()
    return int(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def bonnie(args, at):
    thousands = max(1, args.files // BONNIE_FILES)
    printed = run("bonnie++", "-q", "-d", at, "-s", 0, "-n", f"{thousands}:0:0:1", "-u",
                  f"{os.getuid()}:{os.getgid()}")
    fields = printed.strip().splitlines()[-1].split(",")
    rows = {}
    for number, name in enumerate(["create", "stat", "delete"]):
        # bonnie++ prints plus signs for what takes less than half a second.
        rate, worst = fields[26 + 2 * number], fields[44 + number]
        rate = None if rate.startswith("+") else float(rate)
        worst = microseconds(worst) if worst else None
        rows[f"one process {name}"] = figures(rate, worst=worst)
    return rows


def dbench(args, at):
    printed = run("dbench", "-D", at, "-t", args.seconds, args.ranks)
    rows = {}
    for name, count, _, worst in re.findall(
            r"^ (\w+) +(\d+) +([\d.]+) +([\d.]+)$", printed, re.MULTILINE):
        if name in ["NTCreateX", "Qpathinfo", "Unlink", "Rename", "Find"]:
            rows[f"trace {name}"] = figures(int(count) / args.seconds, worst=float(worst) * 1e3)
    return rows


def mpirun(args, *words):
    root = ["--allow-run-as-root"] if os.getuid() == 0 and "Open MPI" in run(
        "mpirun", "--version") else []
    return run("mpirun", *root, "-n", args.ranks, *words)


def mdtest(args, at):
    rows = {}
    kinds = [("easy", ["-u"]), ("hard", ["-w", FILE_BYTES, "-e", FILE_BYTES])]
    for kind, flags in kinds:
        printed = mpirun(args, "mdtest", "-F", "-N", 1, "-n", args.files, "-d", at / kind, *flags)
        rows |= {f"{kind} {name}": figures for name, figures in parse_mdtest(printed).items()
                 # Reads of empty files have no counterpart.
                 if (kind, name) != ("easy", "read")}
    return rows


def parse_mdtest(printed):
    """The mean rates of what mdtest did with files; versions before 4 print a colon."""
    number = r"\s+([\d.]+|-?nan|inf)"
    rows = {}
    for name, title in [("create", "creation"), ("stat", "stat"), ("read", "read"),
                        ("delete", "removal")]:
        # Maximum, minimum, mean and standard deviation over the iterations.
        found = re.search(rf"^\s*File {title}\s*:?{number}{number}{number}{number}$", printed,
                          re.MULTILINE)
        # What mdtest was told not to do has the rate 0.
        if found and float(found.group(3)) > 0:
            rows[name] = figures(float(found.group(3)))
    if not rows:
        sys.exit(f"compare: no rate of files in what mdtest printed:\n{printed}")
    return rows


def md_workbench(args, at):
    printed = mpirun(args, "md-workbench", "-D", 1, "-P", args.files, "-I", args.files // 2, "-S",
                     FILE_BYTES, "-o", at / "set")
    return parse_md_workbench(printed)


def parse_md_workbench(printed):
    """The rate of the first benchmark phase, and the rate and the latencies of its operations."""
    line = re.search(r"^benchmark process .*$", printed, re.MULTILINE)
    rates = line and re.search(r"rate:([\d.]+) iops/s .*rate:([\d.]+) obj/s", line.group())
    if not rates:
        sys.exit(f"compare: no rate of a benchmark in what md-workbench printed:\n{printed}")
    errors = re.search(r"\((\d+) errs", line.group())
    if errors and int(errors.group(1)) > 0:
        sys.exit(f"compare: md-workbench: {errors.group(1)} calls failed:\n{line.group()}")
    rows = {"benchmark": figures(float(rates.group(1)))}
    for name in ["stat", "read", "delete", "create"]:
        # Minimum, first quartile, median, third quartile, 90 %, 99 % and maximum, in seconds.
        found = re.search(rf" {name}\(([^)]*)\)", line.group())
        if found:
            times = [float(time.rstrip("s")) * 1e6 for time in found.group(1).split(", ")]
            rows[f"benchmark {name}"] = figures(float(rates.group(2)), times[2], times[5], times[6])
    return rows


TOOLS = {"esker workbench": esker, "fio": fio, "bonnie++": bonnie, "dbench": dbench,
         "mdtest": mdtest, "md-workbench": md_workbench}


def present(names):
    """The tools that this machine has."""
    tools = []
    for name in names:
        needed = [name] + (["mpirun"] if name in ["mdtest", "md-workbench"] else [])
        absent = [program for program in needed if not shutil.which(program)]
        if name != "esker workbench" and absent:
            print(f"compare: skips {name}: this machine has no {absent[0]}", file=sys.stderr)
        else:
            tools.append(name)
    return tools


def median(rounds, tool, row, key):
    found = [figures[tool][row][key] for figures in rounds]
    return None if None in found else statistics.median(found)


def print_table(args, tools, rounds):
    """One row for each work and tool, the works in the order of esker's."""
    print(f"{args.files:,} files a rank, {args.ranks} ranks, {args.directory}, medians of "
          f"{len(rounds)} rounds\n")
    print("| work | program | calls/s | p50 µs | p99 µs | max µs | rate, ours = 1 | p50, ours = 1 |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    works = list(dict.fromkeys(row for tool in tools for row in rounds[0][tool]))
    for work in works:
        for tool in tools:
            if work not in rounds[0][tool]:
                continue
            of = {key: median(rounds, tool, work, key) for key in ["rate", "p50", "p99", "max"]}
            cells = [f"{of['rate']:,.0f}" if of["rate"] else "–"]
            cells += [f"{of[key]:,.1f}" if of[key] else "–" for key in ["p50", "p99", "max"]]
            for key in ["rate", "p50"]:
                is_shared = work in rounds[0].get("esker workbench", {})
                base = median(rounds, "esker workbench", work, key) if is_shared else None
                cells.append(f"{of[key] / base:.2f}" if of[key] and base else "–")
            print(f"| {work} | {tool} | {' | '.join(cells)} |")
    print("\n" + __doc__[__doc__.index("Where the work agrees"):].rstrip())


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--files", type=int, default=40_960, metavar="N",
                        help="of each rank (default 40960)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default 2")
    parser.add_argument("--seconds", type=int, default=10, metavar="N", help="of dbench (default 10)")
    parser.add_argument("--directory", default="/dev/shm", metavar="DIR", help="default /dev/shm")
    parser.add_argument("--json", default=str(TARGET / "compare-workbench.json"), metavar="FILE")
    parser.add_argument("--esker", default=str(TARGET / "release" / "esker"), metavar="FILE")
    parser.add_argument("--tools", default=",".join(TOOLS), metavar="LIST",
                        help=f"default {','.join(TOOLS)}")
    args = parser.parse_args()
    if min(args.rounds, args.files // 2, args.ranks, args.seconds) < 1:
        parser.error("counts start at 1, and files at 2")
    unknown = set(args.tools.split(",")) - set(TOOLS)
    if unknown:
        parser.error(f"no program {unknown.pop()}: {', '.join(TOOLS)}")
    return args


def main():
    args = parse_arguments()
    tools, rounds = present(args.tools.split(",")), []
    for number in range(args.rounds):
        # Each round begins with another program.
        order = tools[number % len(tools):] + tools[:number % len(tools)]
        figures_of = {}
        for tool in order:
            with tempfile.TemporaryDirectory(prefix="compare-", dir=args.directory) as at:
                figures_of[tool] = TOOLS[tool](args, Path(at))
        rounds.append({tool: figures_of[tool] for tool in tools})
        print(f"compare: round {number + 1} of {args.rounds}", file=sys.stderr)
    Path(args.json).write_text(json.dumps({"arguments": vars(args), "rounds": rounds}, indent=1))
    print_table(args, tools, rounds)


if __name__ == "__main__":
    main()

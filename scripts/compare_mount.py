#!/usr/bin/env python3
"""Runs a null FUSE file system, ext4 on a loop image and a mount of Esker in turn, under the same
work, and prints medians and ratios as Markdown; the figures of every round go to JSON.

usage: scripts/compare_mount.py [--rounds N] [--files N] [--entries N] [--megabytes N]
                                [--processes 1,2,4] [--systems null,ext4,esker] [--only WORD]
                                [--json FILE] [--directory DIR]

Takes the superuser: it mounts, and lets the kernel forget what it knows between phases, of all
alike. Everything lies in DIR (default: target/compare-mount). Systems take turns within a round, so
that a machine that slows down slows all of them.

Work: mdtest's easy phases (empty files, a directory for each process) and hard phases (one
directory, 3901 bytes) by peers/mount-load; `ls -f` and `find` of one directory with N entries; fio
with 1 MiB sequential and 4 KiB random reads and writes, synced at the end of writes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "peers" / "target" / "release"
# Where `mkfs` is, also for shells of those who are no superuser.
os.environ["PATH"] += ":/usr/sbin:/sbin"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
ESKER = TARGET / "release" / "esker"

# The bounds: a figure, the system that Esker is compared with, the least ratio of Esker to it.
BOUNDS = [
    ("easy.*.create", "null", 0.80),
    ("easy.*.stat", "null", 0.80),
    ("easy.*.unlink", "null", 0.80),
    ("hard.1.create", "null", 0.65),
    ("list.ls", "null", 0.80),
    ("list.find", "null", 0.80),
    ("fio.read", "ext4", 0.85),
    ("fio.write", "ext4", 0.85),
    ("fio.write_next", "ext4", 0.85),
]


def run(*arguments, **options):
    options.setdefault("check", True)
    options.setdefault("text", True)
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([str(argument) for argument in arguments], **options).stdout


def forget():
    """Lets the kernel forget pages, names and attributes."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    time.sleep(0.5)


class System:
    """A file system at a directory."""

    def __init__(self, directory):
        self.directory = directory / self.name
        self.at = self.directory / "at"
        self.at.mkdir(parents=True)

    def pid(self):
        return None

    def busy(self):
        """Seconds of processor time that the serving process has used."""
        if not self.pid():
            return 0.0
        fields = Path(f"/proc/{self.pid()}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        run("umount", self.at)


class Null(System):
    name = "null"

    def begin(self):
        self.process = subprocess.Popen([PEERS / "null-fs", "--threads", "4", self.at])
        for _ in range(100):
            if os.path.ismount(self.at):
                return
            time.sleep(0.05)
        sys.exit("null-fs does not mount")

    def pid(self):
        return self.process.pid

    def end(self):
        super().end()
        self.process.wait()


class Ext4(System):
    name = "ext4"

    def begin(self):
        image = self.directory / "image"
        with open(image, "wb") as file:
            file.truncate(12 << 30)
        run("mkfs.ext4", "-q", "-F", "-N", 4_000_000, image)
        run("mount", "-o", "loop,noatime", image, self.at)


class Esker(System):
    name = "esker"

    def begin(self):
        self.environment = {**os.environ, "ESKER_STORE": str(self.directory / "store")}
        run(ESKER, "init", env=self.environment)
        shown = run(ESKER, "mount", "--json", "--write", "result", self.at, env=self.environment)
        self.served_by = json.loads(shown)["pid"]

    def pid(self):
        return self.served_by

    def end(self):
        run(ESKER, "umount", self.at, env=self.environment)


def metadata(system, options, figures):
    for shape in ("easy", "hard"):
        for processes in options.processes:
            files = max(1, options.files // processes)
            place = system.at / f"{shape}.{processes}"
            forget()
            before = system.busy()
            rates = json.loads(
                run(PEERS / "mount-load", place, shape, "--processes", processes,
                    "--files", files, "--drop"))
            for phase, rate in rates.items():
                figures[f"{shape}.{processes}.{phase}"] = rate
            if system.pid():
                used = (system.busy() - before) / (files * processes)
                figures[f"{shape}.{processes}.cpu_us_a_file"] = used * 1e6
            place.rmdir()


def listing(system, options, figures):
    place = system.at / "many"
    place.mkdir()
    names = "\n".join(f"file.{number}" for number in range(options.entries))
    run("xargs", "-n", 2000, "touch", "--", input=names, cwd=place)
    for name, command in (("ls", ["ls", "-f"]), ("find", ["find"])):
        forget()
        start = time.monotonic()
        with open(os.devnull, "w") as nothing:
            run(*command, place, stdout=nothing)
        figures[f"list.{name}"] = options.entries / (time.monotonic() - start)
    forget()


def transfer(system, options, figures):
    place = system.at / "io"
    place.mkdir()
    for name, file, pattern, block, fraction in (
        ("write", "data", "write", "1m", 1),
        ("read", "data", "read", "1m", 1),
        ("random_write", "data", "randwrite", "4k", 16),
        ("random_read", "data", "randread", "4k", 16),
        # A second large file, which mounts may have written otherwise than the first.
        ("write_next", "next", "write", "1m", 1),
        ("random_write_new", "new", "randwrite", "4k", 16),
    ):
        forget()
        size = options.megabytes if fraction == 1 else max(1, options.megabytes // fraction)
        told = run("fio", "--output-format=json", "--ioengine=psync", "--randrepeat=1",
                   f"--directory={place}", "--name=io", f"--filename={file}", f"--rw={pattern}",
                   f"--bs={block}", f"--filesize={options.megabytes}m", f"--io_size={size}m",
                   "--invalidate=0", "--end_fsync=1" if "write" in pattern else "--end_fsync=0")
        job = json.loads(told[told.index("{"):])["jobs"][0]
        side = job["write" if "write" in pattern else "read"]
        # With the sync: all bytes by all the time.
        figures[f"fio.{name}"] = side["io_bytes"] / (job["job_runtime"] / 1e3) / 2**20
    shutil.rmtree(place)


WORK = (("metadata", metadata), ("listing", listing), ("transfer", transfer))


def measure(options):
    systems = {kind.name: kind for kind in (Null, Ext4, Esker)}
    rounds = []
    for number in range(options.rounds):
        for name in options.systems:
            directory = options.directory / f"round-{number}"
            system = systems[name](directory)
            system.begin()
            figures = {}
            try:
                for work, function in WORK:
                    # Of a file system in memory, bytes a second say nothing.
                    if options.only and options.only != work or work == "transfer" and name == "null":
                        continue
                    print(f"round {number}: {name}: {work}", file=sys.stderr)
                    function(system, options, figures)
            finally:
                system.end()
            rounds.append({"round": number, "system": name, "figures": figures})
            shutil.rmtree(directory)
    return rounds


def fits(pattern, name):
    parts, names = pattern.split("."), name.split(".")
    return len(parts) == len(names) and all(p in ("*", n) for p, n in zip(parts, names))


def table(rounds, systems):
    every = {}
    for entry in rounds:
        for name, value in entry["figures"].items():
            every.setdefault(name, {}).setdefault(entry["system"], []).append(value)
    medians = {name: {system: statistics.median(values) for system, values in of.items()}
               for name, of in every.items()}
    lines = ["| figure | " + " | ".join(systems) + " | ratio | at least |",
             "|---" * (len(systems) + 3) + "|"]
    for name, of in medians.items():
        ratio, least = "", ""
        for pattern, against, bound in BOUNDS:
            if fits(pattern, name) and "esker" in of and against in of:
                value = of["esker"] / of[against]
                # The ratios of each round: how far the machine let them stray.
                pairs = list(zip(every[name]["esker"], every[name][against]))
                spread = [mine / other for mine, other in pairs]
                ratio = f"{value:.2f} of {against} ({min(spread):.2f}–{max(spread):.2f})"
                least = f"{bound:.2f} {'✓' if value >= bound else '✗'}"
        cells = [f"{of[system]:,.0f}" if system in of else "" for system in systems]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ratio} | {least} |")
    return medians, "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=40_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--processes", default="1,2,4",
                        type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--systems", default="null,ext4,esker", type=lambda text: text.split(","))
    parser.add_argument("--only", choices=[name for name, _ in WORK])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--directory", type=Path, default=TARGET / "compare-mount")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("compare_mount.py: mounting and forgetting take the superuser")
    for program in (ESKER, PEERS / "null-fs", PEERS / "mount-load"):
        if not program.exists():
            sys.exit(f"compare_mount.py: {program} is missing: run `make compare-mount`")
    options.directory.mkdir(parents=True, exist_ok=True)
    rounds = measure(options)
    medians, shown = table(rounds, options.systems)
    print(f"Medians of {options.rounds} rounds; operations, entries or MiB a second, or µs.\n")
    print(shown)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "medians": medians}, indent=1))


if __name__ == "__main__":
    main()

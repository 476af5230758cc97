#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a null FUSE file system, ext4 on a loop image and a mount of Esker in turn, under the same
work, and prints medians and ratios as Markdown; the figures of every round go to JSON.

usage: scripts/compare_mount.py [--rounds N] [--files N] [--entries N] [--megabytes N] [--seconds N]
                                [--processes 1,2,4] [--systems null,ext4,esker] [--only PART,PART]
                                [--json FILE] [--directory DIR] [--esker FILE] [--before FILE]
                                [--transport threads|uring] [--core N] [--durability async|always]

Takes the superuser: it mounts, and lets the kernel forget what it knows between phases, of all
alike. Everything lies in DIR (default: target/compare-mount). Systems take turns within a round, so
that a machine that slows down slows all of them.

Work: mdtest's easy phases (empty files, a directory for each process) and hard phases (one
directory, 3901 bytes) by peers/mount-load; `ls -f` and `find` of one directory with N entries; fio
with 1 MiB sequential and 4 KiB random reads and writes, synced at the end of writes; `rm -rf` of
16,160 directories and of a chain of 1,000; files made in new directories of a session on five bases
and of one on none; a minute of 4 KiB overwrites at random places of a 1 GiB file; 100 bytes appended
to each of 1,000 files of 1.1 MiB in turn.

`--transport uring` mounts Esker and the null file system with rings, which the machine must have
switched on; `--before` stays with threads.

The metadata part runs twice: with clients on any processor, and as `core.*` with clients and the serving
process both on processor N (default 0; -1 leaves this out). Without the wake-ups of another processor,
which on virtual machines cost more than most requests, the second shows the cost of the file systems
themselves. It also reports the requests of the kernel and the context switches of the serving process
for each file, over all phases; requests of Esker only, which counts them (`esker mount --statistics`).

Two more systems are trees that several mounts change at once: `live`, a live namespace of Esker
behind two mounts and a server, and `juicefs`, behind two mounts with metadata in SQLite and data in a
directory. With `--durability async`, both may lose the last moments when the machine dies (SQLite's WAL
with `synchronous=NORMAL`); with `always`, nothing that has returned (`FULL`). Loads of several processes
are divided between the mounts. Both keep names and attributes for a second.

`--before` adds a system `before`: a mount by another binary of Esker. `--only` runs some parts of the
work: metadata, listing, transfer, removal, bases, overwrites, appends.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
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
    ("core.easy.create", "null", 0.80),
    ("core.easy.stat", "null", 0.80),
    ("core.easy.unlink", "null", 0.80),
    ("list.ls", "null", 0.80),
    ("list.find", "null", 0.80),
    ("fio.read", "ext4", 0.85),
    ("fio.write", "ext4", 0.85),
    ("fio.write_next", "ext4", 0.85),
    ("removal.tree", "ext4", 0.50),
    ("appends.rate", "ext4", 0.50),
]
# The least ratio of a figure of a live namespace to that of JuiceFS.
LIVE_BOUNDS = [("*.*.create", 5), ("*.*.stat", 5)]
# The least ratio of a figure of Esker to another of its own.
OWN_BOUNDS = [
    ("bases.five", "bases.none", 0.90),
    ("overwrites.last_ten_seconds", "overwrites.first_ten_seconds", 0.80),
]
# The most that a figure of Esker may be.
LIMITS = [
    ("overwrites.store_mib_over_twice_shown", 256),
    ("appends.objects_a_file", 2),
]

# `rm -rf` removes so many directories, each with so many in it.
TREE_DIRECTORIES, TREE_FANOUT = 160, 100
CHAIN_DEPTH = 1000
BASES, BASE_FILES = 5, 2000
NEW_DIRECTORIES, NEW_FILES = 400, 25
OVERWRITTEN_BYTES, BLOCK_BYTES = 1 << 30, 4096
APPENDED_FILES, APPENDED_FILE_BYTES, APPENDS = 1000, 1_150_000, 10


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

    # How requests reach the mounts of Esker and the null file system alike.
    transport = "threads"

    def __init__(self, directory):
        self.directory = directory / self.name
        self.at = self.directory / "at"
        self.at.mkdir(parents=True)

    def places(self):
        """The mounts; what a program does in one shows in all."""
        return [self.at]

    def pid(self):
        return None

    def tasks(self):
        """Directories of /proc for the threads of the serving process."""
        return Path(f"/proc/{self.pid()}/task").iterdir() if self.pid() else ()

    def run_on(self, processors):
        """Lets the threads of the serving process run on these processors only."""
        for task in self.tasks():
            # The threads of rings stay on theirs.
            if not (task / "comm").read_text().startswith("fuse-ring"):
                os.sched_setaffinity(int(task.name), processors)

    def switches(self):
        """Context switches of the serving process."""
        total = 0
        for task in self.tasks():
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    total += int(line.split()[-1])
        return total

    def requests(self):
        """Requests of the kernel so far, by kind; None if nobody counts them."""
        return None

    def busy(self):
        """Seconds of processor time that the serving process has used."""
        if not self.pid():
            return 0.0
        fields = Path(f"/proc/{self.pid()}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        # A program that has just ended, or a scan of mounts by another, may hold it for a moment.
        for _ in range(50):
            run("umount", self.at, check=False, stderr=subprocess.DEVNULL)
            if not os.path.ismount(self.at):
                return
            time.sleep(0.1)
        run("umount", self.at)


class Null(System):
    name = "null"

    def begin(self):
        self.process = subprocess.Popen(
            [PEERS / "null-fs", "--threads", "4", "--transport", System.transport, self.at])
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
    image_bytes = 12 << 30
    files = 4_000_000

    def begin(self):
        image = self.directory / "image"
        with open(image, "wb") as file:
            file.truncate(self.image_bytes)
        run("mkfs.ext4", "-q", "-F", "-N", self.files, image)
        run("mount", "-o", "loop,noatime", image, self.at)


class Esker(System):
    name = "esker"
    binary = ESKER
    counts_requests = True

    def begin(self):
        self.store = self.directory / "store"
        self.run("init")
        self.served_by = self.mount("result", self.at)

    def run(self, *arguments):
        environment = {**os.environ, "ESKER_STORE": str(self.store)}
        return run(self.binary, *arguments, env=environment)

    def mount(self, name, at, *options):
        """Mounts a session at a directory; returns the process that serves it."""
        transport = ["--transport", self.transport] if self.transport != "threads" else []
        counts = ["--statistics"] if self.counts_requests else []
        told = self.run("mount", "--json", "--write", name, *transport, *counts, *options, at)
        return json.loads(told)["pid"]

    def requests(self):
        if not self.counts_requests:
            return None
        for line in self.run("mounts", "--json", "--statistics").splitlines():
            mount = json.loads(line)
            if mount["mountpoint"] == str(self.at):
                return mount["requests"]
        sys.exit(f"compare_mount.py: {self.at} is not mounted")

    def pid(self):
        return self.served_by

    def end(self):
        self.run("umount", self.at)


class Before(Esker):
    name = "before"
    # As that binary mounts by itself; it may be too old to count.
    transport = "threads"
    counts_requests = False


class Live(Esker):
    """A live namespace behind two mounts on the machine of its server."""
    name = "live"
    durability = "async"
    counts_requests = False

    def begin(self):
        self.store = self.directory / "store"
        self.other = self.directory / "other"
        self.other.mkdir()
        self.run("init")
        self.run("live", "create", "run")
        environment = {**os.environ, "ESKER_STORE": str(self.store)}
        self.server = subprocess.Popen([self.binary, "live", "serve", "run"], env=environment,
                                       stdout=subprocess.DEVNULL)
        for at in self.places():
            self.run("mount", "live:run", at, "--durability", self.durability)
        # A server and two mounts: no one process has the processor time of a file.
        self.served_by = None

    def places(self):
        return [self.at, self.other]

    def end(self):
        for at in self.places():
            self.run("umount", at)
        self.server.terminate()
        self.server.wait()


class JuiceFs(System):
    """JuiceFS behind two mounts."""
    name = "juicefs"
    binary = PEERS.parent / "juicefs"
    durability = "async"

    def begin(self):
        self.other = self.directory / "other"
        self.other.mkdir()
        level = {"async": "NORMAL", "always": "FULL"}[self.durability]
        settings = f"_journal_mode=WAL&_synchronous={level}"
        metadata = f"sqlite3://{self.directory}/metadata.db?{settings}"
        quiet = {"stderr": subprocess.DEVNULL}
        run(self.binary, "format", "--storage", "file", "--bucket", f"{self.directory}/data/",
            metadata, "compared", **quiet)
        for at in self.places():
            run(self.binary, "mount", "-d", metadata, at, "--no-usage-report", "--backup-meta", "0",
                "--cache-dir", self.directory / f"cache-{at.name}", "--log", self.directory / "log",
                **quiet)

    def places(self):
        return [self.at, self.other]

    def end(self):
        for at in self.places():
            run(self.binary, "umount", at, stderr=subprocess.DEVNULL)


def metadata(system, options, figures):
    for shape in ("easy", "hard"):
        for processes in options.processes:
            load(system, options, figures, shape, processes, f"{shape}.{processes}")
    if options.core < 0:
        return
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {options.core})
    system.run_on({options.core})
    try:
        for shape in ("easy", "hard"):
            load(system, options, figures, shape, 1, f"core.{shape}")
    finally:
        os.sched_setaffinity(0, everywhere)
        system.run_on(everywhere)


def load(system, options, figures, shape, processes, name):
    """Runs one load; its figures have names that begin with `name`."""
    files = max(1, options.files // processes)
    place = system.at / name
    forget()
    busy, switches, requests = system.busy(), system.switches(), system.requests()
    mounts = system.places()[:processes]
    loads = [
        subprocess.Popen(
            [PEERS / "mount-load", mount / f"{name}.{number}" if len(mounts) > 1 else place, shape,
             "--processes", str(processes // len(mounts)), "--files", str(files), "--drop"],
            stdout=subprocess.PIPE, text=True)
        for number, mount in enumerate(mounts)]
    for one in loads:
        told, _ = one.communicate()
        if one.returncode:
            sys.exit(f"compare_mount.py: mount-load in {system.name} failed")
        for phase, rate in json.loads(told).items():
            # The rates of mounts that are loaded at once add up.
            figures[f"{name}.{phase}"] = figures.get(f"{name}.{phase}", 0) + rate
    count = files * processes
    if system.pid():
        figures[f"{name}.cpu_us_a_file"] = (system.busy() - busy) / count * 1e6
        figures[f"{name}.switches_a_file"] = (system.switches() - switches) / count
    if requests is not None:
        now = system.requests()
        sent = sum(now.values()) - sum(requests.values())
        # Forgotten files come many in a message, but each is counted.
        sent -= now.get("forget", 0) - requests.get("forget", 0)
        figures[f"{name}.requests_a_file"] = sent / count
    if place.exists():
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


def make_tree(place):
    for number in range(TREE_DIRECTORIES):
        os.makedirs(place / str(number))
        for inner in range(TREE_FANOUT):
            os.mkdir(place / str(number) / str(inner))


def make_chain(place, depth):
    """Makes directories within each other: deeper than a path may be long."""
    place.mkdir()
    at = os.open(place, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("directory", dir_fd=at)
        below = os.open("directory", os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def slowest_mkdir(place, end, slowest):
    """Makes and removes directories until `end`; appends the longest time that one took."""
    longest = 0.0
    while not end.is_set():
        start = time.monotonic()
        place.mkdir()
        longest = max(longest, time.monotonic() - start)
        place.rmdir()
        time.sleep(0.001)
    slowest.append(longest)


def removal(system, options, figures):
    count = TREE_DIRECTORIES * (TREE_FANOUT + 1)
    before = system.busy()
    make_tree(system.at / "tree")
    start = time.monotonic()
    run("rm", "-rf", system.at / "tree")
    figures["removal.tree"] = count / (time.monotonic() - start)
    figures["removal.tree_cpu_us_a_directory"] = (system.busy() - before) / count * 1e6
    make_chain(system.at / "chain", CHAIN_DEPTH)
    start = time.monotonic()
    run("rm", "-rf", system.at / "chain")
    figures["removal.chain"] = CHAIN_DEPTH / (time.monotonic() - start)
    make_tree(system.at / "tree")
    make_chain(system.at / "chain", CHAIN_DEPTH)
    end, slowest = threading.Event(), []
    elsewhere = threading.Thread(
        target=slowest_mkdir, args=(system.at / "elsewhere", end, slowest))
    elsewhere.start()
    run("rm", "-rf", system.at / "tree", system.at / "chain")
    end.set()
    elsewhere.join()
    figures["removal.slowest_mkdir_us"] = slowest[0] * 1e6


def make_new_directories(place):
    """Files made a second, in directories that are made for them."""
    start = time.monotonic()
    place.mkdir()
    for number in range(NEW_DIRECTORIES):
        directory = place / f"directory.{number}"
        directory.mkdir()
        for file in range(NEW_FILES):
            os.close(os.open(f"{directory}/file.{file}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    return NEW_DIRECTORIES * NEW_FILES / (time.monotonic() - start)


def bases(system, options, figures):
    if not isinstance(system, Esker):
        return
    source = system.directory / "source"
    stack = []
    for base in range(BASES):
        for file in range(BASE_FILES):
            path = source / f"base.{base}" / f"{file % 40}" / f"file.{file}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        system.run("import", source, f"base-{base}")
        shutil.rmtree(source)
        stack += ["--base", f"base-{base}"]
    mounts = {"none": system.directory / "on-none", "five": system.directory / "on-five"}
    rates = {name: [] for name in mounts}
    for name, at in mounts.items():
        at.mkdir()
        system.mount(f"on-{name}", at, *(stack if name == "five" else []))
    try:
        for number in range(7):
            for name, at in sorted(mounts.items(), reverse=number % 2 == 0):
                rates[name].append(make_new_directories(at / str(number)))
    finally:
        for at in mounts.values():
            system.run("umount", at)
    for name, values in rates.items():
        figures[f"bases.{name}"] = statistics.median(values)


def stored_bytes(store):
    """Bytes that the files of a store take."""
    total = 0
    for directory, _, files in os.walk(store):
        for file in files:
            try:
                total += os.lstat(os.path.join(directory, file)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def watch_store(store, end, most):
    while not end.wait(0.25):
        most.append(stored_bytes(store))


def overwrites(system, options, figures):
    path = system.at / "overwritten"
    chunk = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(OVERWRITTEN_BYTES >> 20):
            file.write(chunk)
        os.fsync(file.fileno())
    end, most = threading.Event(), []
    watcher = None
    if isinstance(system, Esker):
        watcher = threading.Thread(target=watch_store, args=(system.store, end, most))
        watcher.start()
    source, block = random.Random(1), chunk[:BLOCK_BYTES]
    counts = [0] * options.seconds
    file = os.open(path, os.O_WRONLY)
    start = time.monotonic()
    while (second := int(time.monotonic() - start)) < options.seconds:
        for _ in range(16):
            offset = source.randrange(OVERWRITTEN_BYTES // BLOCK_BYTES) * BLOCK_BYTES
            os.pwrite(file, block, offset)
        counts[second] += 16
    os.close(file)
    tenth = min(10, options.seconds // 2)
    figures["overwrites.first_ten_seconds"] = sum(counts[:tenth]) / tenth
    figures["overwrites.last_ten_seconds"] = sum(counts[-tenth:]) / tenth
    if watcher:
        end.set()
        watcher.join()
        over = max(most) - 2 * OVERWRITTEN_BYTES
        figures["overwrites.store_mib_over_twice_shown"] = over / 2**20
        figures["overwrites.store_mib_at_most"] = max(most) / 2**20
    path.unlink()


def appends(system, options, figures):
    place = system.at / "appended"
    place.mkdir()
    names = [str(place / str(number)) for number in range(APPENDED_FILES)]
    content = os.urandom(APPENDED_FILE_BYTES)
    for name in names:
        Path(name).write_bytes(content)
    # What is written back meanwhile is not measured.
    os.sync()
    start = time.monotonic()
    for _ in range(APPENDS):
        for name in names:
            file = os.open(name, os.O_WRONLY | os.O_APPEND)
            os.write(file, content[:100])
            os.close(file)
    figures["appends.rate"] = APPENDS * len(names) / (time.monotonic() - start)
    if isinstance(system, Esker):
        objects = sum(len(files) for _, _, files in os.walk(system.store))
        figures["appends.objects_a_file"] = objects / len(names)
    for name in names:
        assert os.stat(name).st_size == APPENDED_FILE_BYTES + 100 * APPENDS
    shutil.rmtree(place)


WORK = {"metadata": metadata, "listing": listing, "transfer": transfer, "removal": removal,
        "bases": bases, "overwrites": overwrites, "appends": appends}
# Work that says nothing of a file system in memory, or that it cannot do.
NOT_OF_NULL = ("transfer", "overwrites")


def measure(options):
    systems = {kind.name: kind for kind in (Null, Ext4, Before, Esker, JuiceFs, Live)}
    Before.binary, Esker.binary = options.before, options.esker
    Live.binary = options.esker
    Live.durability = JuiceFs.durability = options.durability
    rounds = []
    for number in range(options.rounds):
        for name in options.systems:
            directory = options.directory / f"round-{number}"
            system = systems[name](directory)
            system.begin()
            figures = {}
            try:
                for work in options.only:
                    if name == "null" and work in NOT_OF_NULL:
                        continue
                    print(f"round {number}: {name}: {work}", file=sys.stderr)
                    WORK[work](system, options, figures)
            finally:
                system.end()
            rounds.append({"round": number, "system": name, "figures": figures})
            shutil.rmtree(directory)
    return rounds


def compared(mine, others, what, bound):
    """The ratio of two medians, how far the machine let that of each round stray, and the verdict."""
    value = statistics.median(mine) / statistics.median(others)
    spread = [one / other for one, other in zip(mine, others)]
    return (f"{value:.2f} {what} ({min(spread):.2f}–{max(spread):.2f})",
            f"{bound:.2f} {'✓' if value >= bound else '✗'}")


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
        mine = every[name].get("esker", [])
        live = every[name].get("live", [])
        for pattern, bound in LIVE_BOUNDS:
            if fits(pattern, name) and live and "juicefs" in of:
                ratio, least = compared(live, every[name]["juicefs"], "of juicefs", bound)
        for pattern, against, bound in BOUNDS:
            if fits(pattern, name) and mine and against in of:
                ratio, least = compared(mine, every[name][against], f"of {against}", bound)
        for pattern, other, bound in OWN_BOUNDS:
            if fits(pattern, name) and mine:
                ratio, least = compared(mine, every[other]["esker"], f"of {other}", bound)
        for pattern, limit in LIMITS:
            if fits(pattern, name) and mine:
                least = f"at most {limit} {'✓' if max(mine) <= limit else '✗'}"
        if not ratio and mine and "before" in of and of["before"]:
            ratio, _ = compared(mine, every[name]["before"], "of before", 0)
        digits = 2 if name.endswith("_a_file") and not name.endswith("us_a_file") else 0
        cells = [f"{of[system]:,.{digits}f}" if system in of else "" for system in systems]
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
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--only", default=",".join(WORK), type=lambda text: text.split(","))
    parser.add_argument("--esker", type=Path, default=ESKER)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--transport", choices=("threads", "uring"), default="threads")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--durability", choices=("async", "always"), default="async")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--directory", type=Path, default=TARGET / "compare-mount")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("compare_mount.py: mounting and forgetting take the superuser")
    if options.before and "before" not in options.systems:
        options.systems.insert(-1, "before")
    if not set(options.only) <= set(WORK):
        sys.exit(f"compare_mount.py: --only takes some of {', '.join(WORK)}")
    for program in (options.esker, PEERS / "null-fs", PEERS / "mount-load"):
        if not program.exists():
            sys.exit(f"compare_mount.py: {program} is missing: run `make compare-mount`")
    options.directory.mkdir(parents=True, exist_ok=True)
    System.transport = options.transport
    rounds = measure(options)
    medians, shown = table(rounds, options.systems)
    print(f"Medians of {options.rounds} rounds; transport: {options.transport}; operations, entries or "
          "MiB a second, µs, or numbers.\n")
    print(shown)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "medians": medians}, indent=1))


if __name__ == "__main__":
    main()

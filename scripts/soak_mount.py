#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs long campaigns in a mount of Esker and, beside it, on ext4, and compares what they find.

usage: scripts/soak_mount.py [--minutes N] [--scale F] [--only PART,PART] [--esker FILE]
                             [--directory DIR] [--seed N]

Each part does the same work on both file systems; it fails if a call does not do what it should, or if
the two results differ. Sizes are multiplied by F (default 1).

  names     files at all names of one and two bytes, and of 255 bytes
  depth     directories within each other, 1,000 deep
  entries   2,000,000 files in one directory: listed, looked up, removed
  creates   5,000,000 files in directories of 10,000; the process that serves the mount stays small
  open      50,000 files open at a time, if the limit of descriptors allows; then without their names
  large     a file of 20 GiB, written, overwritten at random places and read, with checksums (fio)
  stress    stress-ng's file-system class with --verify, each stressor for a share of a third of N minutes
  kills     for two thirds of N minutes: the process that serves the mount is killed while stress-ng
            works in it; what was synced is there, and the store is sound (Esker only)

Takes the superuser, as it mounts. Everything lies in DIR (default: target/soak-mount). Exits 1 if
anything failed.
"""

import argparse
import errno
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare_mount import CHAIN_DEPTH, ESKER, TARGET, Esker, Ext4, make_chain, run

ENTRIES = 2_000_000
CREATES, CREATES_A_DIRECTORY = 5_000_000, 10_000
# Memory of the serving process: what it may use for changes, and for what the kernel knows.
RESIDENT_BYTES_MAX = 1 << 30
OPEN_FILES = 50_000
# Descriptors that programs and libraries need beside those.
SPARE_FILES = 100
LARGE_BYTES = 20 << 30
IMAGE_BYTES = 40 << 30
# Stressors of the class that leave the file system, or that change the machine.
EXCLUDED_STRESSORS = "bind-mount,binderfs,procfs,eventfd,ioprio"


class Failure(Exception):
    """What a part finds wrong."""


def check(condition, what):
    if not condition:
        raise Failure(what)


def digest(parts):
    """One number for byte strings and their order."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.hexdigest()


def names(system, options):
    at = os.fsencode(system.at / "names")
    os.mkdir(at)
    allowed = [bytes([byte]) for byte in range(1, 256) if byte != ord("/")]
    wanted = {one for one in allowed if one != b"."}
    wanted |= {one + two for one in allowed for two in allowed if one + two != b".."}
    wanted |= {one * 255 for one in allowed}
    for name in sorted(wanted):
        with open(at + b"/" + name, "wb") as file:
            file.write(name)
    listed = os.listdir(at)
    check(len(listed) == len(wanted) and set(listed) == wanted, "the listing has other names")
    for name in wanted:
        with open(at + b"/" + name, "rb") as file:
            check(file.read() == name, f"{name} has another content")
    too_long = at + b"/" + b"x" * 256
    try:
        os.mkdir(too_long)
        raise Failure("a name of 256 bytes is taken")
    except OSError as error:
        check(error.errno == errno.ENAMETOOLONG, f"a name of 256 bytes: {error}")
    shutil.rmtree(at)
    return len(wanted), digest(sorted(listed))


def depth(system, options):
    place = system.at / "depth"
    levels = CHAIN_DEPTH
    make_chain(place, levels)
    found = len(run("find", place).splitlines()) - 1
    check(found == levels, f"{found} of {levels} directories are found")
    # The whole path is longer than a call may give.
    at = os.open(place, os.O_DIRECTORY)
    for _ in range(levels):
        below = os.open("directory", os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    file = os.open("bottom", os.O_CREAT | os.O_RDWR, dir_fd=at)
    os.write(file, b"deep")
    os.fsync(file)
    check(os.pread(file, 9, 0) == b"deep", "the file at the bottom has another content")
    os.close(file)
    os.close(at)
    run("rm", "-rf", place)
    check(not place.exists(), "rm -rf leaves the chain")
    return found


def entries(system, options):
    count = max(1000, int(ENTRIES * options.scale))
    place = system.at / "entries"
    place.mkdir()
    at = os.open(place, os.O_DIRECTORY)
    for number in range(count):
        os.mknod(f"entry.{number}", dir_fd=at)
    listed = sum(int(entry.name[6:]) for entry in os.scandir(place))
    check(listed == count * (count - 1) // 2, "the listing has other names")
    source = random.Random(options.seed)
    for _ in range(10_000):
        number = source.randrange(2 * count)
        try:
            os.stat(f"entry.{number}", dir_fd=at)
            check(number < count, f"entry.{number} was never made")
        except FileNotFoundError:
            check(number >= count, f"entry.{number} is not found")
    for number in range(0, count, 2):
        os.unlink(f"entry.{number}", dir_fd=at)
    left = sum(1 for _ in os.scandir(place))
    os.close(at)
    run("rm", "-rf", place)
    check(not place.exists(), "rm -rf leaves the directory")
    return count, left


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise Failure(f"process {pid} has ended")


def creates(system, options):
    count = max(1000, int(CREATES * options.scale))
    place = system.at / "creates"
    most = 0
    for number in range(count):
        directory = place / str(number // CREATES_A_DIRECTORY)
        if number % CREATES_A_DIRECTORY == 0:
            directory.mkdir(parents=True)
            at = os.open(directory, os.O_DIRECTORY)
        os.mknod(f"file.{number}", dir_fd=at)
        if (number + 1) % CREATES_A_DIRECTORY == 0 or number + 1 == count:
            os.close(at)
            if system.pid():
                most = max(most, resident_bytes(system.pid()))
                check(most <= RESIDENT_BYTES_MAX,
                      f"the mount takes {most >> 20} MiB after {number + 1} creates")
    if most:
        print(f"soak: creates: the mount took at most {most >> 20} MiB", flush=True)
    found = sum(len(files) for _, _, files in os.walk(place))
    check(found == count, f"{found} of {count} files are found")
    return found


def open_files(system, options):
    count = int(OPEN_FILES * options.scale)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + SPARE_FILES, max(limit[1], count + SPARE_FILES)))
    except (ValueError, PermissionError):
        count = min(count, limit[1] - SPARE_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
        print(f"soak: open: the limit of descriptors allows {count} files", flush=True)
    place = system.at / "open"
    place.mkdir()
    files = []
    try:
        for number in range(count):
            file = os.open(place / str(number), os.O_CREAT | os.O_RDWR)
            files.append(file)
            os.write(file, b"content of %d" % number)
        for number, file in enumerate(files):
            check(os.pread(file, 99, 0) == b"content of %d" % number, f"file {number} changed")
            os.unlink(place / str(number))
        check(os.listdir(place) == [], "names are left")
        for number, file in enumerate(files):
            os.pwrite(file, b"!", 0)
            check(os.pread(file, 99, 0) == b"!ontent of %d" % number, f"file {number} changed")
            check(os.fstat(file).st_nlink == 0, f"file {number} has a name")
    finally:
        for file in files:
            os.close(file)
    place.rmdir()
    return "as many as the limit allows"


def large(system, options):
    size = max(64 << 20, int(LARGE_BYTES * options.scale)) >> 20 << 20
    free = shutil.disk_usage(options.directory).free
    if size * 2 > free:
        raise Failure(f"{free >> 30} GiB are free: run with a smaller --scale, or another --directory")
    place = system.at / "large"
    place.mkdir()
    common = ["fio", "--name=large", f"--directory={place}", "--filename=file", f"--size={size}",
              "--ioengine=psync", "--verify=crc32c", "--verify_fatal=1", "--output-format=terse",
              "--fallocate=none", "--randseed=7", "--verify_state_save=0"]
    run(*common, "--rw=write", "--bs=1m", "--end_fsync=1", "--do_verify=1")
    # The blocks that are written twice have other checksums, which fio looks for.
    run(*common, "--rw=randwrite", "--bs=4k", f"--io_size={min(size // 16, 256 << 20)}",
        "--end_fsync=1", "--do_verify=1")
    found = os.stat(place / "file").st_size
    os.truncate(place / "file", size // 3)
    cut = os.stat(place / "file").st_size
    shutil.rmtree(place)
    return found, cut


def stress_ng(at, seconds, *arguments):
    """Starts stress-ng in a directory."""
    at.mkdir(exist_ok=True)
    return subprocess.Popen(
        ["stress-ng", "--verify", "--temp-path", str(at), "--timeout", str(seconds), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def stress(system, options):
    listed = run("stress-ng", "--class", "filesystem?", stderr=subprocess.STDOUT)
    stressors = listed.split("stressors:", 1)[1].split()
    stressors = [one for one in stressors if one not in EXCLUDED_STRESSORS.split(",")]
    seconds = max(1, int(options.minutes * 60 / 3 / 2 / len(stressors)))
    process = stress_ng(system.at / "stress", seconds, "--class", "filesystem", "--sequential", "1",
                        "--exclude", EXCLUDED_STRESSORS)
    said, _ = process.communicate()
    failed = [line for line in said.splitlines() if "fail:" in line or "unsuccessful" in line]
    # 3: some stressor found nothing to do, since the file system or the machine lacks it.
    check(process.returncode in (0, 3) and not failed,
          f"stress-ng ends with {process.returncode}:\n" + "\n".join(failed or [said[-2000:]]))
    shutil.rmtree(system.at / "stress", ignore_errors=True)
    return len(stressors)


def write_synced(place, number, source):
    """Writes a file and syncs it; returns what it has."""
    content = source.randbytes(source.choice([10, 5_000, 300_000, 3_000_000]))
    with open(place / str(number), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).digest()


def kills(system, options):
    if not isinstance(system, Esker):
        return None
    source = random.Random(options.seed)
    end = time.monotonic() + options.minutes * 60 * 2 / 3
    synced, rounds = {}, 0
    place = system.at / "synced"
    place.mkdir()
    while time.monotonic() < end:
        busy = stress_ng(system.at / f"busy-{rounds}", 120, "--class", "filesystem", "--sequential", "1",
                         "--exclude", EXCLUDED_STRESSORS, "--timeout", "2")
        until = time.monotonic() + source.uniform(2, 30)
        while time.monotonic() < until:
            number = source.randrange(200)
            # Until it is synced again it may have either content.
            synced.pop(number, None)
            synced[number] = write_synced(place, number, source)
        os.kill(system.pid(), signal.SIGKILL)
        try:
            busy.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            # Its stressors wait for nothing that the mount could answer.
            busy.terminate()
            busy.communicate()
        system.resume()
        for number, wanted in synced.items():
            found = hashlib.sha256((place / str(number)).read_bytes()).digest()
            check(found == wanted, f"round {rounds}: the synced file {number} changed")
        for left in system.at.glob("busy-*"):
            run("rm", "-rf", left)
        rounds += 1
    system.run("umount", system.at)
    system.run("verify")
    system.resume_as_new()
    for number, wanted in synced.items():
        found = hashlib.sha256((place / str(number)).read_bytes()).digest()
        check(found == wanted, f"the synced file {number} changed when it was published")
    print(f"soak: kills: {rounds} rounds, {len(synced)} synced files", flush=True)
    return None


class Soaked(Esker):
    """A mount that can be killed and resumed."""

    def resume(self):
        # The kernel may still answer for a process that is being killed.
        for _ in range(100):
            if not Path(f"/proc/{self.pid()}").exists():
                break
            time.sleep(0.1)
        self.served_by = self.mount("result", self.at, "--resume")

    def resume_as_new(self):
        self.served_by = self.mount("next", self.at, "--base", "result")


class Disk(Ext4):
    image_bytes = IMAGE_BYTES
    files = CREATES + 1_000_000


PARTS = {"names": names, "depth": depth, "entries": entries, "creates": creates, "open": open_files,
         "large": large, "stress": stress, "kills": kills}


def attempt(kind, part, options):
    """Runs a part on a new file system; returns what it finds and what is wrong with that."""
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{part}-{kind.name}-", dir=options.directory))
    system = kind(directory)
    system.begin()
    try:
        found, wrong = PARTS[part](system, options), None
    except Exception as error:  # Whatever it is, the file system is unmounted.
        found, wrong = None, f"{type(error).__name__}: {error}"
    try:
        system.end()
        if isinstance(system, Esker):
            system.run("verify")
    except (OSError, subprocess.CalledProcessError) as error:
        wrong = wrong or f"at the end: {error}"
        subprocess.run(["umount", "-l", system.at], check=False)
    if wrong:
        print(f"soak: {part}: what is left is in {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return found, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--only", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--esker", type=Path, default=ESKER)
    parser.add_argument("--directory", type=Path, default=TARGET / "soak-mount")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("soak_mount.py: mounting takes the superuser")
    if not set(options.only) <= set(PARTS):
        sys.exit(f"soak_mount.py: --only takes some of {', '.join(PARTS)}")
    Soaked.binary = options.esker
    passed = failed = 0
    print(f"soak: seed {options.seed}", flush=True)
    for part in options.only:
        start = time.monotonic()
        mine, wrong = attempt(Soaked, part, options)
        if not wrong and part != "kills":
            others, wrong = attempt(Disk, part, options)
            if not wrong and mine != others:
                wrong = f"esker finds {mine}, ext4 {others}"
        passed, failed = passed + (not wrong), failed + bool(wrong)
        verdict = f"FAILED: {wrong}" if wrong else f"{mine if mine is not None else 'ok'}"
        print(f"soak: {part}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"soak: {passed} parts passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

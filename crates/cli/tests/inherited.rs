// SPDX-License-Identifier: Apache-2.0
//! Random changes to files of a base in a mount, mirrored on copies in a local file system. fsx
//! does not cover this: it first truncates its file, so nothing of the base remains visible.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use esker_base::Random;
use rustix::fs::{Advice, FallocateFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::mounted::{Mounted, can_mount};

/// More than stays in memory, and as long as fsx's.
const FILE_BYTES_MAX: u64 = 2 << 20;
const OPERATION_BYTES_MAX: u64 = 128 << 10;
/// In a record, in a packed log, about where a file gets its own log, and beyond.
const SIZES: [u64; 4] = [100, 60_000, 1 << 20, FILE_BYTES_MAX - 5_000];
/// Operations on one file before the next has its turn.
const TURN: u32 = 20;

/// A file in a mount, and its expected state.
struct Pair {
    mounted: File,
    local: File,
    paths: [PathBuf; 2],
}

fn open(path: &Path) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    file.expect("open")
}

/// Maps the bytes of `file` in `range`, which must be within the file, and passes them to `use_it`.
fn with_mapped<T>(file: &File, range: &Range<u64>, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    let start = range.start & !4_095;
    let length = usize::try_from(range.end - start).expect("a small range");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new and private to this function, and nobody truncates the mapped part
    // before it is unmapped below.
    unsafe {
        let null = std::ptr::null_mut();
        let at = rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, start);
        let at = at.expect("mmap");
        let bytes = std::slice::from_raw_parts_mut(at.cast::<u8>(), length);
        let used = use_it(&mut bytes[(range.start - start) as usize..]);
        rustix::mm::msync(at, length, MsyncFlags::ASYNC).expect("msync");
        rustix::mm::munmap(at, length).expect("munmap");
        used
    }
}

impl Pair {
    fn new(mounted: PathBuf, local: PathBuf) -> Self {
        Self { mounted: open(&mounted), local: open(&local), paths: [mounted, local] }
    }

    fn both(&self, change: impl Fn(&File)) {
        change(&self.mounted);
        change(&self.local);
    }

    fn size(&self) -> u64 {
        let [size, expected] =
            [&self.mounted, &self.local].map(|file| file.metadata().expect("stat").len());
        assert_eq!(size, expected, "{}", self.paths[0].display());
        size
    }

    fn check(&self, range: &Range<u64>, read: impl Fn(&File) -> Vec<u8>) {
        let [bytes, expected] = [&self.mounted, &self.local].map(read);
        let differs = || bytes.iter().zip(&expected).position(|(one, other)| one != other);
        assert!(bytes == expected, "{}: {range:?} at {:?}", self.paths[0].display(), differs());
    }

    fn check_read(&self, range: &Range<u64>) {
        self.check(range, |file| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut bytes, range.start).expect("read");
            bytes
        });
    }

    /// Makes one random change, or checks a part.
    fn step(&mut self, random: &mut Random) {
        let size = self.size();
        let start = random.below(FILE_BYTES_MAX);
        let length = 1 + random.below(OPERATION_BYTES_MAX);
        let range = start..(start + length).min(FILE_BYTES_MAX);
        // Range for mappings and reads: within the file.
        let inside = start.min(size.saturating_sub(1))..range.end.min(size);
        match random.below(40) {
            0..10 => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                random.fill(&mut bytes);
                self.both(|file| file.write_all_at(&bytes, range.start).expect("write"));
            }
            10..16 if !inside.is_empty() => {
                let fill = random.below(256) as u8;
                self.both(|file| with_mapped(file, &inside, |bytes| bytes.fill(fill)));
            }
            16..22 if !inside.is_empty() => {
                self.check(&inside, |file| with_mapped(file, &inside, |bytes| bytes.to_vec()));
            }
            22..30 if !inside.is_empty() => self.check_read(&inside),
            30..33 => self.both(|file| file.set_len(start).expect("truncate")),
            33..35 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                self.both(|file| {
                    let length = range.end - range.start;
                    rustix::fs::fallocate(file, punch, range.start, length).expect("punch");
                });
            }
            35..37 if !inside.is_empty() => {
                let length = (inside.end - inside.start) as usize;
                let to = random.below(FILE_BYTES_MAX - length as u64);
                if to + length as u64 <= inside.start || inside.end <= to {
                    self.both(|file| copy(file, inside.clone(), to));
                }
            }
            37 => self.mounted.sync_data().expect("sync"),
            38 => {
                let advice = Advice::DontNeed;
                rustix::fs::fadvise(&self.mounted, 0, None, advice).expect("fadvise");
            }
            _ => self.mounted = open(&self.paths[0]),
        }
    }
}

/// Copies `range` of `file` to `to`, by sharing extents if the file system can.
fn copy(file: &File, range: Range<u64>, mut to: u64) {
    let mut from = range.start;
    while from < range.end {
        let length = (range.end - from) as usize;
        let (one, two) = (Some(&mut from), Some(&mut to));
        let copied = rustix::fs::copy_file_range(file.as_fd(), one, file.as_fd(), two, length);
        assert!(copied.expect("copy") > 0);
    }
}

/// Changes files that a base has; synced changes must survive the death of the mount and
/// compaction, and must be present in the next session, on top of what the round has published.
fn inherited_files_are_as_their_copies(rounds: u64, operations: u32, mode: &[&str]) {
    let mounted = Mounted::new();
    let local = mounted.esker.path("local");
    fs::create_dir(&local).expect("mkdir");
    let mut random = Random::from_seed(rounds + u64::from(operations));
    let mount = |name: &str, more: &[&str]| {
        mounted.mount(&[&["mount", "--write", name], more, mode].concat());
    };
    mount("base-0", &[]);
    for (number, size) in SIZES.iter().enumerate() {
        let mut bytes = vec![0; *size as usize];
        random.fill(&mut bytes);
        for directory in [mounted.root(), &local] {
            fs::write(directory.join(number.to_string()), &bytes).expect("write");
        }
    }
    let files = || (0..SIZES.len()).map(|number| number.to_string());
    let pair = |file: String| Pair::new(mounted.path(&file), local.join(&file));
    let check = || {
        for pair in files().map(pair) {
            pair.check_read(&(0..pair.size()));
        }
    };
    let original: Vec<_> = files().map(|file| fs::read(local.join(file)).expect("read")).collect();
    for round in 0..rounds {
        mounted.end();
        let (base, name) = (format!("base-{round}"), format!("base-{}", round + 1));
        mount(&name, &["--base", &base]);
        check();
        for turn in 0..2 {
            let mut pairs: Vec<Pair> = files().map(pair).collect();
            for _ in 0..operations / 2 / TURN {
                let at = random.below(pairs.len() as u64) as usize;
                (0..TURN).for_each(|_| pairs[at].step(&mut random));
            }
            pairs.iter().for_each(|pair| pair.mounted.sync_all().expect("sync"));
            drop(pairs);
            match turn {
                0 => mounted.crash(),
                _ => mounted.crash_and_compact(),
            }
            mount(&name, &["--resume"]);
            check();
        }
    }
    mounted.end();
    mounted.esker.ok(["verify"]);
    assert_eq!(mounted.log(), "");
    for (file, original) in files().zip(original) {
        let exported = mounted.esker.path(format!("exported-{file}"));
        let from = format!("base-0:/{file}");
        mounted.esker.ok(["export".as_ref(), from.as_ref(), exported.as_os_str()]);
        assert!(fs::read(exported).expect("read") == original, "the base stays as it was");
    }
}

#[test]
fn inherited_files_change_as_copies_of_them_do() {
    if can_mount() {
        inherited_files_are_as_their_copies(2, 2_000, &[]);
    }
}

#[test]
fn inherited_files_change_as_copies_of_them_do_when_the_kernel_collects_writes() {
    if can_mount() {
        inherited_files_are_as_their_copies(2, 1_000, &["--write-back"]);
    }
}

/// A million operations with forty deaths of the mount; the final stack has twenty layers.
#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_inherited_files_change_as_copies_of_them_do() {
    if can_mount() {
        inherited_files_are_as_their_copies(20, 50_000, &[]);
    }
}

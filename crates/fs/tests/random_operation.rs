// SPDX-License-Identifier: Apache-2.0
//! Random operations: likely enough to succeed that trees grow, and to fail in every way.

use esker_base::random::Random;
use esker_fs::inode::FileKind;
use esker_fs::ops::{AttributeChanges, RenameFlags, XattrSet};
use esker_fs::stack::namespace::FollowLinks;

use crate::operation::{Content, Operation, TargetPath};
use crate::reference::Reference;

/// Users that own files in random trees.
pub const USERS: &[u32] = &[0, 1_001, 1_002, 1_003];
/// Groups; each ordinary user is in one or two.
pub const GROUPS: &[u32] = &[0, 2_001, 2_002, 2_003];

const NAMES: &[&[u8]] = &[b"a", b"b", b"c", b"d", b"e", b"f.txt", b"...", b"\xff\xfe", b"a b\n"];
const XATTRS: &[&[u8]] = &[b"user.one", b"user.two", b"trusted.three"];

/// Distribution of random operations.
#[derive(Clone, Debug)]
pub struct Mix {
    paths: Vec<(Vec<u8>, FileKind)>,
    age: usize,
    /// One file in this many has over 8 MiB; 0 for none.
    pub large_one_in: u64,
}

/// Picks one of `choices`.
pub fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

impl Mix {
    pub fn new(large_one_in: u64) -> Self {
        Self { paths: Vec::new(), age: 0, large_one_in }
    }

    /// Returns the next operation, on paths like those of `reference`.
    pub fn next(&mut self, random: &mut Random, reference: &Reference) -> Operation {
        if self.age == 0 {
            self.paths = reference.paths();
            self.age = 8;
        }
        self.age -= 1;
        use Operation as O;
        match random.below(100) {
            0..9 => O::Create { at: self.vacant(random), mode: mode(random) },
            9..16 => {
                let content = self.content(random);
                // Set-id bits of a file created with content would depend on the order of steps.
                O::Write { at: self.vacant(random), mode: mode(random) & 0o1777, content }
            }
            16..20 => O::Rewrite { at: self.existing(random), content: self.content(random) },
            20..31 => O::Mkdir { at: self.vacant(random), mode: mode(random) & 0o1777 | 0o500 },
            31..33 => mknod(self.vacant(random), random),
            33..38 => O::Symlink { at: self.vacant(random), target: self.target(random) },
            38..43 => O::Link { from: self.existing(random), to: self.vacant(random) },
            43..49 => O::Unlink(self.existing(random)),
            49..52 => O::Rmdir(self.existing(random)),
            52 => O::RemoveTree(self.existing(random)),
            53..68 => {
                let flags = [RenameFlags::Replace, RenameFlags::NoReplace, RenameFlags::Exchange];
                let flags = flags[random.below(5).saturating_sub(2) as usize];
                O::Rename { from: self.existing(random), to: self.any(random), flags }
            }
            68..75 => O::SetAttributes { at: self.existing(random), changes: self.changes(random) },
            75..78 => O::SetXattr {
                at: self.existing(random),
                name: pick(random, XATTRS).to_vec(),
                value: vec![b'v'; random.below(20) as usize],
                how: pick(random, &[XattrSet::Any, XattrSet::Create, XattrSet::Replace]),
            },
            78..80 => {
                O::RemoveXattr { at: self.existing(random), name: pick(random, XATTRS).to_vec() }
            }
            80..87 => {
                let follow = if random.one_in(2) { FollowLinks::Yes } else { FollowLinks::No };
                O::Stat { path: self.path(random), follow }
            }
            87..92 => O::List { path: self.path(random), limit: 1 + random.below(5) as usize },
            92..95 => O::ReadLink(self.path(random)),
            _ => O::Read(self.path(random)),
        }
    }

    fn one(&self, random: &mut Random) -> &(Vec<u8>, FileKind) {
        &self.paths[random.below(self.paths.len() as u64) as usize]
    }

    /// Returns a path that usually exists.
    fn known(&self, random: &mut Random) -> Vec<u8> {
        let path = self.one(random).0.clone();
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// Returns a directory that usually exists, spelled in some way.
    fn dir(&self, random: &mut Random) -> Vec<u8> {
        for _ in 0..10 {
            let (path, kind) = self.one(random);
            if *kind == FileKind::Directory && path.iter().filter(|&&byte| byte == b'/').count() < 5
            {
                return self.embellished(random, path.clone());
            }
        }
        let path = self.known(random);
        self.embellished(random, path)
    }

    /// Returns the same path spelled differently, or another near it.
    fn embellished(&self, random: &mut Random, mut path: Vec<u8>) -> Vec<u8> {
        match random.below(40) {
            0 => path.extend_from_slice(b"/."),
            1 => path.extend_from_slice(b"/.."),
            2 => path.push(b'/'),
            3 => path.extend_from_slice(b"//x/../"),
            4 => path.splice(0..0, *b"/./..").for_each(drop),
            5 => {
                path.push(b'/');
                path.extend_from_slice(pick(random, NAMES));
            }
            _ => {}
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// Returns a path to read.
    fn path(&self, random: &mut Random) -> Vec<u8> {
        let path = self.known(random);
        self.embellished(random, path)
    }

    /// Returns a path that is usually vacant.
    fn vacant(&self, random: &mut Random) -> TargetPath {
        TargetPath { dir: self.dir(random), name: self.name(random) }
    }

    fn name(&self, random: &mut Random) -> Vec<u8> {
        match random.below(200) {
            0 => vec![b'n'; 255],
            _ => pick(random, NAMES).to_vec(),
        }
    }

    /// Returns a path that usually exists.
    fn existing(&self, random: &mut Random) -> TargetPath {
        let path = self.one(random).0.clone();
        if path.is_empty() || random.one_in(12) {
            return self.vacant(random);
        }
        let target = TargetPath::of(&path);
        let dir = target.dir[..target.dir.len() - 1].to_vec();
        TargetPath { dir: self.embellished(random, dir), name: target.name }
    }

    fn any(&self, random: &mut Random) -> TargetPath {
        if random.one_in(2) { self.existing(random) } else { self.vacant(random) }
    }

    /// Returns the target of a symbolic link.
    fn target(&self, random: &mut Random) -> Vec<u8> {
        match random.below(10) {
            0 => b"..".to_vec(),
            1 => [&b"../"[..], pick(random, NAMES)].concat(),
            2 => vec![b't'; 1 + random.below(400) as usize],
            3..6 => pick(random, NAMES).to_vec(),
            _ => self.path(random),
        }
    }

    fn content(&self, random: &mut Random) -> Content {
        let bytes = match random.below(10) {
            0 => 0,
            1..5 => 1 + random.below(256),
            5 => 255 + random.below(4),
            6..9 => random.below(10_000),
            _ => random.below(150_000),
        };
        let large = random.one_in(self.large_one_in);
        let bytes = if large { (8 << 20) - 2 + random.below(5_000) } else { bytes };
        Content { bytes: bytes as usize, seed: random.next_u64() }
    }

    fn changes(&self, random: &mut Random) -> AttributeChanges {
        let mut changes = AttributeChanges::default();
        match random.below(8) {
            0..3 => changes.mode = Some(mode(random)),
            3 => changes.uid = Some(pick(random, USERS)),
            4 => changes.gid = Some(pick(random, GROUPS)),
            5 => {
                changes.uid = Some(pick(random, USERS));
                changes.gid = Some(pick(random, GROUPS));
            }
            6 => changes.size = Some(self.content(random).bytes as u64),
            _ => {
                // From 1938 on.
                let time = |random: &mut Random| {
                    (random.below(2_000_000_000).cast_signed() - 1_000_000_000) * 1_000_000_000
                };
                changes.mtime_ns = Some(time(random));
                changes.atime_ns = random.one_in(2).then(|| time(random));
            }
        }
        changes
    }
}

fn mknod(at: TargetPath, random: &mut Random) -> Operation {
    let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice];
    let kind = pick(random, &kinds);
    let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let rdev = if device { 0x0103 + random.below(3) } else { 0 };
    Operation::Mknod { at, kind, mode: mode(random), rdev }
}

/// Returns permission bits: mostly common ones, sometimes strange ones.
fn mode(random: &mut Random) -> u32 {
    let usual = [0o755, 0o644, 0o777, 0o666, 0o700, 0o600, 0o775, 0o2775, 0o1777, 0o4755, 0o2755];
    if random.one_in(6) { random.below(0o10000) as u32 } else { pick(random, &usual) }
}

// SPDX-License-Identifier: Apache-2.0
//! Operation: one file system operation as data, so that several implementations can run it, and
//! its result.

use std::collections::BTreeMap;

use esker_base::Kind;
use esker_base::random::Random;
use esker_fs::inode::FileKind;
use esker_fs::ops::{AttributeChanges, RenameFlags, XattrSet};
use esker_fs::stack::namespace::FollowLinks;

/// A name in a directory, which is given by its path.
#[derive(Clone, PartialEq, Eq)]
pub struct TargetPath {
    pub dir: Vec<u8>,
    pub name: Vec<u8>,
}

impl TargetPath {
    /// Returns the path that ends with the last component of `path`.
    pub fn of(path: &[u8]) -> Self {
        let slash = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        Self { dir: path[..slash].to_vec(), name: path[slash..].to_vec() }
    }
}

impl std::fmt::Debug for TargetPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.name.escape_ascii(), self.dir.escape_ascii())
    }
}

/// Bytes of a file, by length and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub bytes: usize,
    pub seed: u64,
}

impl Content {
    pub fn make(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        Random::from_seed(self.seed).fill(&mut bytes);
        bytes
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create { at: TargetPath, mode: u32 },
    Write { at: TargetPath, mode: u32, content: Content },
    Rewrite { at: TargetPath, content: Content },
    Mkdir { at: TargetPath, mode: u32 },
    Mknod { at: TargetPath, kind: FileKind, mode: u32, rdev: u64 },
    Symlink { at: TargetPath, target: Vec<u8> },
    Link { from: TargetPath, to: TargetPath },
    Unlink(TargetPath),
    Rmdir(TargetPath),
    RemoveTree(TargetPath),
    Rename { from: TargetPath, to: TargetPath, flags: RenameFlags },
    SetAttributes { at: TargetPath, changes: AttributeChanges },
    SetXattr { at: TargetPath, name: Vec<u8>, value: Vec<u8>, how: XattrSet },
    RemoveXattr { at: TargetPath, name: Vec<u8> },
    Stat { path: Vec<u8>, follow: FollowLinks },
    List { path: Vec<u8>, limit: usize },
    ReadLink(Vec<u8>),
    Read(Vec<u8>),
}

/// Result of `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u64,
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub atime_ns: i64,
}

/// Result of a successful operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Attributes(Attributes),
    /// Sorted; a listing finds each name once.
    Names(Vec<Vec<u8>>),
    Bytes(Vec<u8>),
}

/// Result of an operation.
pub type Outcome = Result<Answer, Kind>;

/// Everything about one file that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub attributes: Attributes,
    /// Content, or a symbolic link's target.
    pub bytes: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file, if it has several.
    pub first_name: Vec<u8>,
}

/// Everything in a file system, by path; the root's is empty.
pub type Tree = BTreeMap<Vec<u8>, Leaf>;

/// A time that the file system may choose: not compared.
pub const ANY_TIME: i64 = i64::MAX;

/// True if `found` is as `expected`.
pub fn agree(found: &Attributes, expected: &Attributes) -> bool {
    let choose = |found: i64, expected: i64| if expected == ANY_TIME { ANY_TIME } else { found };
    let found = Attributes {
        mtime_ns: choose(found.mtime_ns, expected.mtime_ns),
        ctime_ns: choose(found.ctime_ns, expected.ctime_ns),
        atime_ns: choose(found.atime_ns, expected.atime_ns),
        ..found.clone()
    };
    found == *expected
}

/// True if an operation had the expected result.
pub fn same_outcome(found: &Outcome, expected: &Outcome) -> bool {
    match (found, expected) {
        (Ok(Answer::Attributes(found)), Ok(Answer::Attributes(expected))) => agree(found, expected),
        _ => found == expected,
    }
}

/// Describes the first difference of two trees.
pub fn difference(found: &Tree, expected: &Tree) -> Option<String> {
    for (path, leaf) in expected {
        let path_text = path.escape_ascii();
        let Some(other) = found.get(path) else {
            return Some(format!("/{path_text} is missing, expected {:?}", leaf.attributes));
        };
        if !agree(&other.attributes, &leaf.attributes) {
            let (found, expected) = (&other.attributes, &leaf.attributes);
            return Some(format!("/{path_text}:\n   found {found:?}\nexpected {expected:?}"));
        }
        if other.bytes != leaf.bytes {
            let (found, expected) = (other.bytes.len(), leaf.bytes.len());
            return Some(format!("/{path_text}: other content, {found} for {expected} bytes"));
        }
        if other.xattrs != leaf.xattrs {
            return Some(format!("/{path_text}: {:?}, expected {:?}", other.xattrs, leaf.xattrs));
        }
        if other.first_name != leaf.first_name {
            return Some(format!("/{path_text}: another file has this name"));
        }
    }
    let more = found.keys().find(|path| !expected.contains_key(*path));
    more.map(|path| format!("/{} is there, expected nothing", path.escape_ascii()))
}

/// Returns `tree` without the times of directories, which a crash may set back.
pub fn without_directory_times(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for leaf in tree.values_mut() {
        if leaf.attributes.kind == FileKind::Directory {
            leaf.attributes.mtime_ns = ANY_TIME;
            leaf.attributes.ctime_ns = ANY_TIME;
        }
    }
    tree
}

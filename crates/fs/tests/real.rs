// SPDX-License-Identifier: Apache-2.0
//! Real directory: runs operations as system calls, so that the kernel defines the expected
//! results.
//!
//! Paths are resolved with the directory as their root (`openat2`, `RESOLVE_IN_ROOT`); the last
//! name is then used with the directory's descriptor. Operations run in a thread with the
//! identity's user and groups (`as_identity`); without privileges that is the user of the test.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use esker_base::Kind;
use esker_fs::inode::FileKind;
use esker_fs::inode::timestamp;
use esker_fs::ops::{AttributeChanges, RenameFlags, XattrSet};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use rustix::fs::{self as call, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::operation::{Answer, Attributes, Leaf, Operation, TargetPath, Tree};

type Result<T> = std::result::Result<T, Errno>;

/// A directory of the machine.
pub struct RealDirectory {
    root: OwnedFd,
    /// True if device files can be made.
    has_devices: bool,
}

/// Gives this thread the user and groups of `identity` for the rest of its life, without a umask.
pub fn become_identity(identity: &Identity) {
    use rustix::process::{Gid, Uid};
    // SAFETY: the thread shares no working directory afterwards; descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
        .expect("a thread may have a working directory and a umask of its own");
    rustix::process::umask(Mode::empty());
    if *identity == Identity::of_process() {
        return;
    }
    let groups: Vec<Gid> = identity.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups).expect("the superuser sets groups");
    let gid = Gid::from_raw(identity.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).expect("the superuser sets the group");
    let uid = Uid::from_raw(identity.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).expect("the superuser sets the user");
}

/// True if the kernel can resolve paths below a root, on which the tests rely.
pub fn is_supported(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    call::openat2(call::CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).is_ok()
}

impl RealDirectory {
    /// Opens the directory at `path`, with times as if it had been made at `now_ns`.
    pub fn new(path: &Path, now_ns: i64) -> Self {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = call::open(path, flags, Mode::empty()).expect("a directory");
        let mode = Mode::from_raw_mode(0o600);
        let made = call::mknodat(&root, "device", FileType::CharacterDevice, mode, 0x0103);
        if made.is_ok() {
            call::unlinkat(&root, "device", AtFlags::empty()).expect("it was just made");
        }
        let time =
            call::Timespec { tv_sec: now_ns / 1_000_000_000, tv_nsec: now_ns % 1_000_000_000 };
        let times = call::Timestamps { last_access: time, last_modification: time };
        call::futimens(&root, &times).expect("the directory is ours");
        Self { root, has_devices: made.is_ok() }
    }

    /// True if the kernel has no call for `operation`, or its result depends on the machine.
    pub fn skips(&self, operation: &Operation) -> bool {
        use Operation as O;
        let kind = |at: &TargetPath| {
            let stat = call::statat(&self.dir(&at.dir).ok()?, name(at), AtFlags::SYMLINK_NOFOLLOW);
            stat.ok().map(|stat| (kind_of(&stat), stat.st_uid))
        };
        match operation {
            O::RemoveTree(_) => true,
            O::Mknod { kind, .. } => {
                matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) && !self.has_devices
            }
            // A symbolic link's mode cannot be set.
            O::SetAttributes { at, changes } if changes.mode.is_some() => {
                kind(at).is_some_and(|(kind, _)| kind == FileKind::Symlink)
            }
            // `fs.protected_hardlinks` is a policy of the machine.
            O::Link { from, .. } => {
                let own = rustix::process::geteuid().as_raw();
                kind(from).is_some_and(|(_, uid)| own != 0 && uid != own)
            }
            // Opening these would block, or read a device.
            O::Read(path) => self.open(path, OFlags::PATH).is_ok_and(|found| {
                let stat = call::fstat(&found).expect("stat of what is open");
                !matches!(kind_of(&stat), FileKind::File | FileKind::Directory)
            }),
            _ => false,
        }
    }

    pub fn run(&self, operation: &Operation) -> Result<Answer> {
        use Operation as O;
        let mode_of = Mode::from_raw_mode;
        match operation {
            O::Create { at, mode } => self.create(at, *mode).map(drop)?,
            O::Write { at, mode, content } => {
                write_all(&self.create(at, *mode)?, &content.make())?;
            }
            O::Rewrite { at, content } => self.rewrite(at, &content.make())?,
            O::Mkdir { at, mode } => {
                call::mkdirat(self.dir(&at.dir)?, name(at), mode_of(*mode))?;
            }
            O::Mknod { at, kind, mode, rdev } => {
                let kind = file_type(*kind);
                call::mknodat(self.dir(&at.dir)?, name(at), kind, mode_of(*mode), *rdev)?;
            }
            O::Symlink { at, target } => {
                call::symlinkat(target.as_slice(), self.dir(&at.dir)?, name(at))?;
            }
            O::Link { from, to } => {
                let from_dir = self.dir(&from.dir)?;
                call::statat(&from_dir, name(from), AtFlags::SYMLINK_NOFOLLOW)?;
                let to_dir = self.dir(&to.dir)?;
                call::linkat(from_dir, name(from), to_dir, name(to), AtFlags::empty())?;
            }
            O::Unlink(at) => call::unlinkat(self.dir(&at.dir)?, name(at), AtFlags::empty())?,
            O::Rmdir(at) => call::unlinkat(self.dir(&at.dir)?, name(at), AtFlags::REMOVEDIR)?,
            O::RemoveTree(_) => unreachable!("skipped"),
            O::Rename { from, to, flags } => self.rename(from, to, *flags)?,
            O::SetAttributes { at, changes } => self.set_attributes(at, changes)?,
            O::SetXattr { at, name: attribute, value, how } => {
                self.enter(at)?;
                let how = match how {
                    XattrSet::Any => call::XattrFlags::empty(),
                    XattrSet::Create => call::XattrFlags::CREATE,
                    XattrSet::Replace => call::XattrFlags::REPLACE,
                };
                call::lsetxattr(name(at), attribute.as_slice(), value, how)?;
            }
            O::RemoveXattr { at, name: attribute } => {
                self.enter(at)?;
                call::lremovexattr(name(at), attribute.as_slice())?;
            }
            O::Stat { path, follow } => {
                let nofollow =
                    if *follow == FollowLinks::No { OFlags::NOFOLLOW } else { OFlags::empty() };
                let found = self.open(path, OFlags::PATH | nofollow)?;
                return Ok(Answer::Attributes(attributes(&call::fstat(found)?)));
            }
            O::List { path, .. } => {
                let dir = self.open(path, OFlags::DIRECTORY | OFlags::RDONLY)?;
                return Ok(Answer::Names(names(dir)?));
            }
            O::ReadLink(path) => {
                let found = self.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
                let target = call::readlinkat(found, "", Vec::new()).map_err(|error| {
                    // An empty path needs a descriptor of a link.
                    if error == Errno::NOENT { Errno::INVAL } else { error }
                })?;
                return Ok(Answer::Bytes(target.into_bytes()));
            }
            O::Read(path) => {
                return read_all(&self.open(path, OFlags::RDONLY)?).map(Answer::Bytes);
            }
        }
        Ok(Answer::Done)
    }

    /// Returns the whole tree; the caller must be allowed to read everything.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut first_names: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut waiting = vec![Vec::new()];
        while let Some(path) = waiting.pop() {
            let found = self.open(&path, OFlags::PATH | OFlags::NOFOLLOW).expect("a listed file");
            let stat = call::fstat(&found).expect("stat");
            let attributes = attributes(&stat);
            let bytes = match attributes.kind {
                FileKind::File => {
                    read_all(&self.open(&path, OFlags::RDONLY).expect("open")).expect("read")
                }
                FileKind::Symlink => {
                    call::readlinkat(&found, "", Vec::new()).expect("a target").into_bytes()
                }
                _ => Vec::new(),
            };
            if attributes.kind == FileKind::Directory {
                let dir = self.open(&path, OFlags::DIRECTORY | OFlags::RDONLY).expect("open");
                for name in names(dir).expect("a listing") {
                    let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    waiting.push([&path, separator, &name].concat());
                }
            }
            let id = stat.st_ino.to_be_bytes().to_vec();
            let first = first_names.entry(id.clone()).or_insert_with(|| path.clone());
            if path < *first {
                first.clone_from(&path);
            }
            let xattrs = self.xattrs(&path);
            tree.insert(path, Leaf { attributes, bytes, xattrs, first_name: id });
        }
        for leaf in tree.values_mut() {
            leaf.first_name = first_names[&leaf.first_name].clone();
        }
        tree
    }

    fn xattrs(&self, path: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let at = TargetPath::of(path);
        if at.name.is_empty() {
            return BTreeMap::new();
        }
        self.enter(&at).expect("a listed directory");
        let mut list = vec![0; 4096];
        let count = call::llistxattr(name(&at), &mut list).expect("a list of attributes");
        let names = list[..count].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let ours = names.filter(|name| name.starts_with(b"user.") || name.starts_with(b"trusted."));
        ours.map(|attribute| {
            let mut value = vec![0; 4096];
            let count = call::lgetxattr(name(&at), attribute, &mut value).expect("a value");
            (attribute.to_vec(), value[..count].to_vec())
        })
        .collect()
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let path: &[u8] = if path.is_empty() { b"." } else { path };
        loop {
            let flags = flags | OFlags::CLOEXEC;
            let opened =
                call::openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
            // A concurrent rename somewhere interfered.
            if !matches!(opened, Err(Errno::AGAIN)) {
                return opened;
            }
        }
    }

    fn dir(&self, path: &[u8]) -> Result<OwnedFd> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Makes the directory of a place the thread's working directory.
    fn enter(&self, at: &TargetPath) -> Result<()> {
        rustix::process::fchdir(self.dir(&at.dir)?)
    }

    fn create(&self, at: &TargetPath, mode: u32) -> Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        call::openat(self.dir(&at.dir)?, name(at), flags, Mode::from_raw_mode(mode))
    }

    fn rewrite(&self, at: &TargetPath, bytes: &[u8]) -> Result<()> {
        let dir = self.dir(&at.dir)?;
        let stat = call::statat(&dir, name(at), AtFlags::SYMLINK_NOFOLLOW)?;
        check_file(&stat)?;
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        write_all(&call::openat(dir, name(at), flags, Mode::empty())?, bytes)
    }

    fn rename(&self, from: &TargetPath, to: &TargetPath, flags: RenameFlags) -> Result<()> {
        let from_dir = self.dir(&from.dir)?;
        // The kernel walks to the last name of one path before it resolves the other.
        if let Err(Errno::ACCESS) = call::statat(&from_dir, ".", AtFlags::empty()) {
            return Err(Errno::ACCESS);
        }
        let flags = match flags {
            RenameFlags::Replace => call::RenameFlags::empty(),
            RenameFlags::NoReplace => call::RenameFlags::NOREPLACE,
            RenameFlags::Exchange => call::RenameFlags::EXCHANGE,
        };
        call::renameat_with(from_dir, name(from), self.dir(&to.dir)?, name(to), flags)
    }

    fn set_attributes(&self, at: &TargetPath, changes: &AttributeChanges) -> Result<()> {
        let dir = self.dir(&at.dir)?;
        if let Some(mode) = changes.mode {
            call::chmodat(&dir, name(at), Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            let uid = changes.uid.map(call::Uid::from_raw);
            let gid = changes.gid.map(call::Gid::from_raw);
            call::chownat(&dir, name(at), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(size) = changes.size {
            check_file(&call::statat(&dir, name(at), AtFlags::SYMLINK_NOFOLLOW)?)?;
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            call::ftruncate(call::openat(&dir, name(at), flags, Mode::empty())?, size)?;
        }
        if changes.mtime_ns.is_some() || changes.atime_ns.is_some() {
            let time = |time_ns: Option<i64>| match time_ns {
                Some(ns) => {
                    let (tv_sec, tv_nsec) = timestamp::parts(ns);
                    call::Timespec { tv_sec, tv_nsec }
                }
                None => call::Timespec { tv_sec: 0, tv_nsec: call::UTIME_OMIT },
            };
            let times = call::Timestamps {
                last_access: time(changes.atime_ns),
                last_modification: time(changes.mtime_ns),
            };
            call::utimensat(&dir, name(at), &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }
}

fn name(at: &TargetPath) -> &[u8] {
    &at.name
}

/// Fails like truncation for anything but a regular file.
fn check_file(stat: &call::Stat) -> Result<()> {
    match kind_of(stat) {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let count = rustix::io::write(file, bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

fn read_all(file: &OwnedFd) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let count = rustix::io::read(file, &mut piece)?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&piece[..count]);
    }
}

fn names(dir: OwnedFd) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in call::Dir::new(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        _ => FileType::BlockDevice,
    }
}

fn kind_of(stat: &call::Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::File,
    }
}

fn attributes(stat: &call::Stat) -> Attributes {
    let kind = kind_of(stat);
    let is_dir = kind == FileKind::Directory;
    let ns = |seconds: i64, ns: u64| timestamp::of_parts(seconds, ns.cast_signed());
    Attributes {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: if is_dir { 1 } else { stat.st_nlink as u32 },
        rdev: stat.st_rdev,
        size: if is_dir { 0 } else { stat.st_size as u64 },
        mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
        ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        atime_ns: ns(stat.st_atime, stat.st_atime_nsec),
    }
}

/// Returns the kind whose errno is `error`.
pub fn kind_of_errno(error: Errno) -> Kind {
    const KINDS: &[Kind] = &[
        Kind::NotFound,
        Kind::Exists,
        Kind::NotADirectory,
        Kind::IsADirectory,
        Kind::NotEmpty,
        Kind::Denied,
        Kind::Invalid,
        Kind::TooLarge,
        Kind::NotPermitted,
        Kind::Loop,
        Kind::NoAttribute,
    ];
    let kind = KINDS.iter().find(|kind| kind.errno() == error.raw_os_error());
    *kind.unwrap_or_else(|| panic!("no operation fails like this: {error}"))
}

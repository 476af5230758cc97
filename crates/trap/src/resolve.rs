// SPDX-License-Identifier: Apache-2.0
//! Resolve: finds the file to which a path of a program leads, in the shown namespace or outside of
//! it.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use esker_base::{Error, Kind};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::EXECUTE;
use esker_fs::stack::path::SYMLINKS_MAX;
use rustix::io::Errno;

use crate::caller::{Caller, errno_of};
use crate::outside::start_of;
use crate::supervisor::Supervisor;

/// The kernel's suffix to the path of a directory that was removed.
const REMOVED: &[u8] = b" (deleted)";

/// The result of following a path.
#[derive(Debug)]
pub(crate) enum Resolved {
    /// The path leads out of the namespace. The kernel follows it once the skeleton has the way.
    Outside(Way),
    /// The path leads into the namespace.
    Inside(Box<Located>),
}

/// The links and directories of the namespace through which a path leads. The kernel needs them in
/// the skeleton to follow the path itself.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Symbolic links: directory, name and target.
    pub(crate) links: Vec<(Dir, Vec<u8>, Vec<u8>)>,
    /// Directories that the path leaves by `..`.
    pub(crate) left: Vec<Dir>,
}

/// The end of a walk through the namespace.
enum Walked {
    Inside(Box<Located>),
    /// A path outside of the namespace, and whether a symbolic link at the end of the walk led to
    /// it.
    Outside(Vec<u8>, Way, bool),
}

/// A name in the namespace.
#[derive(Debug)]
pub(crate) struct Located {
    /// The namespace for the user who asks.
    pub(crate) view: NamespaceView,
    /// The directory that has the name; for the root, the root itself.
    pub(crate) dir: Dir,
    /// The name in it; empty for the root.
    pub(crate) name: Vec<u8>,
    /// The inode at the name.
    pub(crate) inode: Option<Inode>,
    /// True if the path requires a directory, for example because it ends in a slash.
    pub(crate) wants_directory: bool,
    pub(crate) way: Way,
    /// True if the last component of the path was a symbolic link that was followed.
    pub(crate) is_followed: bool,
}

impl Located {
    /// The inode at the name.
    ///
    /// # Errors
    /// `NOENT`.
    pub(crate) fn inode(&self) -> Result<&Inode, Errno> {
        self.inode.as_ref().ok_or(Errno::NOENT)
    }

    /// The directory that is there.
    ///
    /// # Errors
    /// `NOENT`, `NOTDIR`.
    pub(crate) fn opened(&self) -> Result<Dir, Errno> {
        self.opened_as(self.inode()?)
    }

    /// The directory that is there, whose inode is `inode`.
    ///
    /// # Errors
    /// `NOTDIR`.
    pub(crate) fn opened_as(&self, inode: &Inode) -> Result<Dir, Errno> {
        if self.name.is_empty() {
            return Ok(self.dir.clone());
        }
        let opened = self.view.namespace().open_dir(&self.dir, &self.name, inode);
        opened.map_err(|error| errno(&error))
    }

    /// Fails unless a file can be made there.
    ///
    /// # Errors
    /// `EXIST`; `NOENT` if the path requires a directory and `is_directory` is false.
    pub(crate) fn check_vacant(&self, is_directory: bool) -> Result<(), Errno> {
        match (&self.inode, self.wants_directory && !is_directory) {
            (Some(_), _) => Err(Errno::EXIST),
            (None, true) => Err(Errno::NOENT),
            (None, false) => Ok(()),
        }
    }
}

impl Way {
    fn append(&mut self, mut further: Self) {
        self.links.append(&mut further.links);
        self.left.append(&mut further.left);
    }
}

/// The errno of an error.
pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_raw_os_error(error.kind().errno())
}

/// The place at which a namespace is shown.
#[derive(Debug)]
pub(crate) struct ShownPlace {
    components: Vec<Vec<u8>>,
}

impl ShownPlace {
    /// The place at `path`, an absolute path without symbolic links.
    pub(crate) fn new(path: &[u8]) -> Self {
        Self { components: components(path).map(<[u8]>::to_vec).collect() }
    }

    /// Returns what follows the place in `path`, if `path` leads there by its text alone: without
    /// `..`, which leads elsewhere behind a symbolic link.
    pub(crate) fn within<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let (mut wanted, mut at) = (self.components.iter(), 0);
        while at < path.len() {
            let end =
                path[at..].iter().position(|&byte| byte == b'/').map_or(path.len(), |to| at + to);
            match &path[at..end] {
                b"" | b"." => {}
                name if wanted.next()? != name => return None,
                _ if wanted.len() == 0 => return Some(&path[end..]),
                _ => {}
            }
            at = end + 1;
        }
        None
    }
}

/// True if a path has a component that leads to a parent.
pub(crate) fn has_parent(path: &[u8]) -> bool {
    components(path).any(|name| name == b"..")
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// The components of a path, the first one last.
pub(crate) fn reversed(path: &[u8]) -> Vec<Vec<u8>> {
    components(path).rev().map(<[u8]>::to_vec).collect()
}

/// The starting point of a path.
enum Start {
    Outside,
    /// In the namespace.
    Inside(WalkStart),
}

/// The starting point of a walk through the namespace.
struct WalkStart {
    from: Dir,
    /// The rest of the path.
    path: Vec<u8>,
    /// True if the last component of the caller's path was a symbolic link, which led here.
    is_followed: bool,
}

impl Supervisor {
    /// Follows `path`, which `caller` names relative to the directory `descriptor`. Follows a
    /// symbolic link at its end, too, if `follows`.
    ///
    /// # Errors
    /// Those of a system call that names a file.
    pub(crate) fn resolve(
        &self,
        caller: Caller,
        descriptor: i32,
        path: &[u8],
        follows: bool,
    ) -> Result<Resolved, Errno> {
        if path.is_empty() {
            // The kernel has the right error.
            return Ok(Resolved::Outside(Way::default()));
        }
        match self.start(caller, descriptor, path, follows)? {
            Start::Outside => Ok(Resolved::Outside(Way::default())),
            Start::Inside(start) => {
                let view = self.identities().of(caller)?;
                if !path_is_below(&start.from) {
                    self.check_way(&view)?;
                }
                self.walk_all(caller, &view, start, follows)
            }
        }
    }

    /// Walks from a directory, and on if the path leads out of the place and back in through
    /// symbolic links outside.
    fn walk_all(
        &self,
        caller: Caller,
        view: &NamespaceView,
        mut start: WalkStart,
        follows: bool,
    ) -> Result<Resolved, Errno> {
        let mut whole = Way::default();
        for _ in 0..=SYMLINKS_MAX {
            match self.walk(view.clone(), start.from, &start.path, follows)? {
                Walked::Inside(mut located) => {
                    whole.append(std::mem::take(&mut located.way));
                    located.way = whole;
                    located.is_followed |= start.is_followed;
                    return Ok(Resolved::Inside(located));
                }
                Walked::Outside(outside, way, is_followed) => {
                    whole.append(way);
                    let Some(back) = self.way_back(caller, "root", &outside, follows)? else {
                        return Ok(Resolved::Outside(whole));
                    };
                    let is_followed = start.is_followed | is_followed | back.is_followed;
                    let from = view.namespace().root().clone();
                    start = WalkStart { from, path: back.rest, is_followed };
                }
            }
        }
        Err(Errno::LOOP)
    }

    fn start(
        &self,
        caller: Caller,
        descriptor: i32,
        path: &[u8],
        follows: bool,
    ) -> Result<Start, Errno> {
        let from_root = |path: Vec<u8>, is_followed| {
            let from = self.identities().superuser().namespace().root().clone();
            Start::Inside(WalkStart { from, path, is_followed })
        };
        let mut joined = path.to_vec();
        if !path.starts_with(b"/") {
            let base = if descriptor == libc::AT_FDCWD {
                caller.working_directory()?
            } else {
                match caller.descriptor_path(descriptor) {
                    Ok(base) => base,
                    Err(Errno::NAMETOOLONG) => return Err(Errno::NAMETOOLONG),
                    // The kernel has the right error.
                    Err(_) => return Ok(Start::Outside),
                }
            };
            if let Some(below) = self.shown_at().within(&base) {
                let start = |from| WalkStart { from, path: path.to_vec(), is_followed: false };
                let dir = self.dir_below(caller, &start_of(descriptor, path), below)?;
                return Ok(dir.map_or(Start::Outside, |dir| Start::Inside(start(dir))));
            }
            if self.spool().is_within(&base) {
                return Err(Errno::NOTDIR);
            }
            joined = [base.as_slice(), b"/", path].concat();
        }
        if let Some(rest) = self.shown_at().within(&joined) {
            return Ok(from_root(rest.to_vec(), false));
        }
        let back = self.way_back(caller, &start_of(descriptor, path), path, follows)?;
        Ok(back.map_or(Start::Outside, |back| from_root(back.rest, back.is_followed)))
    }

    /// The directory at `below`, the rest of the path of a directory of the skeleton that `from`
    /// in the folder of `/proc` of `caller` leads to. `None` if both were removed: the kernel then
    /// carries out the calls that still work in it.
    pub(crate) fn dir_below(
        &self,
        caller: Caller,
        from: &str,
        below: &[u8],
    ) -> Result<Option<Dir>, Errno> {
        // The kernel adds this to the path of a removed directory; a name may end like it.
        if below.ends_with(REMOVED) {
            let found = rustix::fs::stat(format!("/proc/{}/{from}", caller.thread()))?;
            if found.st_nlink == 0 {
                return Ok(None);
            }
        }
        let namespace = self.identities().superuser().namespace();
        let dir = namespace.dir_at(namespace.root(), [b".", below].concat());
        dir.map(Some).map_err(|error| errno(&error))
    }

    fn walk(
        &self,
        view: NamespaceView,
        from: Dir,
        path: &[u8],
        follows: bool,
    ) -> Result<Walked, Errno> {
        let namespace = view.namespace();
        // The next component last.
        let mut ahead = reversed(path);
        let mut wants_directory = wants_directory(path);
        let (mut dir, mut way, mut is_followed) = (from, Way::default(), false);
        let (dir, name, inode) = loop {
            let Some(name) = ahead.pop() else {
                let inode = namespace.stat_dir(&dir).map_err(|error| errno(&error))?;
                let (dir, name) = dir.location().unwrap_or((dir, Vec::new()));
                break (dir, name, Some(inode));
            };
            if name == b".." {
                way.left.push(dir.clone());
                match dir.location() {
                    Some((parent, _)) => dir = parent,
                    None => match self.leave(&ahead) {
                        Ok(back) => ahead = back,
                        Err(path) => {
                            let path = ending(path, wants_directory);
                            return Ok(Walked::Outside(path, way, is_followed));
                        }
                    },
                }
                continue;
            }
            let is_last = ahead.is_empty();
            let inode = match namespace.lookup(&dir, &name, true) {
                Ok(inode) => inode,
                Err(error) if error.kind() == Kind::NotFound && is_last => break (dir, name, None),
                Err(error) => return Err(errno(&error)),
            };
            if inode.kind() == Some(FileKind::Symlink) && (!is_last || follows || wants_directory) {
                if way.links.len() == SYMLINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = inode.content;
                way.links.push((dir.clone(), name, target.clone()));
                wants_directory |= is_last && self::wants_directory(&target);
                is_followed |= is_last;
                let mut rest = target.as_slice();
                if target.starts_with(b"/") {
                    let Some(below) = self.shown_at().within(&target) else {
                        let path = ending(joined(target, &ahead), wants_directory);
                        return Ok(Walked::Outside(path, way, is_followed));
                    };
                    (dir, rest) = (namespace.root().clone(), below);
                }
                ahead.extend(reversed(rest));
                continue;
            }
            if is_last {
                if wants_directory && !inode.kind().is_some_and(FileKind::is_shown_as_directory) {
                    return Err(Errno::NOTDIR);
                }
                break (dir, name, Some(inode));
            }
            dir = namespace.open_dir(&dir, &name, &inode).map_err(|error| errno(&error))?;
        };
        let located = Located { view, dir, name, inode, wants_directory, way, is_followed };
        Ok(Walked::Inside(Box::new(located)))
    }

    /// Fails unless the user may search the directories that lead to the place. Only a superuser's
    /// supervisor can have callers without that permission.
    fn check_way(&self, view: &NamespaceView) -> Result<(), Errno> {
        let identity = view.namespace().identity();
        if identity.is_root() || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let place = self.skeleton().root();
        for directory in place.ancestors().skip(1) {
            let found = std::fs::metadata(directory).map_err(|error| errno_of(&error))?;
            if !identity.may(EXECUTE, found.mode(), found.uid(), found.gid(), true) {
                return Err(Errno::ACCESS);
            }
        }
        Ok(())
    }

    /// Goes from the place one directory up, and then `ahead`: returns what follows the place if
    /// that leads back to it, otherwise the path.
    fn leave(&self, ahead: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Vec<u8>> {
        let place = self.skeleton().root().as_os_str().as_bytes();
        let end = place.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let path = joined(place[..end].to_vec(), ahead);
        self.shown_at().within(&path).map(reversed).ok_or(path)
    }
}

/// True if a caller is in a directory below the place already, and so need not get there.
fn path_is_below(from: &Dir) -> bool {
    from.location().is_some()
}

pub(crate) fn wants_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.") || path == b"."
}

/// Appends the components `ahead`, which are in reverse order.
fn joined(mut path: Vec<u8>, ahead: &[Vec<u8>]) -> Vec<u8> {
    if ahead.is_empty() && path.is_empty() {
        path.push(b'/');
    }
    for name in ahead.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

/// The path, with a slash at its end if it must lead to a directory.
fn ending(mut path: Vec<u8>, wants_directory: bool) -> Vec<u8> {
    if wants_directory {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_the_place_by_their_text() {
        let place = ShownPlace::new(b"/tmp/shown");
        let cases: [(&[u8], Option<&[u8]>); 11] = [
            (b"/tmp/shown", Some(b"")),
            (b"/tmp/shown/", Some(b"/")),
            (b"//tmp/./shown/a/../..", Some(b"/a/../..")),
            // The kernel knows where these lead.
            (b"/tmp/x/../shown/a", None),
            (b"/../tmp/shown", None),
            (b"tmp/shown/b", Some(b"/b")),
            (b"/tmp/shown2/a", None),
            (b"/tmp", None),
            (b"/usr/tmp/shown", None),
            (b"/tmp/x/y/../../shown/z", None),
            (b"/", None),
        ];
        for (path, rest) in cases {
            assert_eq!(place.within(path), rest, "{}", String::from_utf8_lossy(path));
        }
    }
}

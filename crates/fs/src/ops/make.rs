//! Making files on behalf of others: what a front end needs that serves many users and has had
//! their permissions checked, as a kernel does.

use esker_base::{Error, Kind, Result};

use crate::dir::Dir;
use crate::inode::{Entry, FileKind, Inode};
use crate::ops::create::check_target;
use crate::session::Session;

/// A file to be made for somebody.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits; whoever checked the permissions has also taken from them what its maker
    /// may not have.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl Session {
    /// Makes `new` at `name` in `dir`. The session's identity, which must be the superuser, stands
    /// in for a caller whose permissions were checked; see [`Session::create`] for costs and for
    /// what survives a crash.
    ///
    /// # Errors
    /// As [`Session::create`] and, for symbolic links, [`Session::symlink`]; `NotPermitted` unless
    /// the session is the superuser's.
    #[inline]
    pub fn make(&self, dir: &Dir, name: &[u8], new: &NewFile) -> Result<Inode> {
        if !self.identity().is_root() {
            let context = "only a session of the superuser makes files for others";
            return Err(Error::new(Kind::NotPermitted, context));
        }
        let mut inode = Inode::new(Entry::Is(new.kind), new.mode & 0o7777, self.now_ns());
        match new.kind {
            FileKind::Symlink => {
                check_target(new.target)?;
                inode.size = new.target.len() as u64;
                inode.content = new.target.to_vec();
            }
            FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = new.rdev,
            FileKind::Indexed => {
                let context = "an indexed directory is made by `create_indexed`";
                return Err(Error::new(Kind::Invalid, context));
            }
            _ => {}
        }
        self.insert_as(dir, name, &mut inode, Some((new.uid, new.gid)))?;
        Ok(inode)
    }
}

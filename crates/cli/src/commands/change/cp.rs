// SPDX-License-Identifier: Apache-2.0
//! `esker cp`: copies files and whole trees.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::ops::{AttributeChanges, XattrSet};
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::{READ, WRITE};
use esker_fs::stack::namespace::{FollowLinks, PathTarget};
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep, normalized};
use esker_imd::entry;

use super::{attributes, one_stack};
use crate::change::{ChangeArguments, ChangedSession};
use crate::context::CommandContext;
use crate::location::StackPath;

/// Copy files and whole trees
///
/// As cp(1). The last argument is the new path, or a directory to copy into. A copy shares the
/// bytes of its original in the store, and takes no space for them. Works on a published name with
/// --as, which publishes the result under a new name, or in an open session.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker cp headers:/stdio.h headers:/stdio.old --as kept
  esker cp -r -p @3f2a:/run7 @3f2a:/run8")]
pub struct CopyCommand {
    /// Paths to copy, then the new path; all in one name or session
    #[arg(required = true, num_args = 2.., value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Copy directories and everything in them; symbolic links are copied as links
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Keep modes, times, extended attributes and, for the superuser, owners
    #[arg(short, long)]
    preserve: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

impl CopyCommand {
    /// Copies them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let stack = one_stack(&self.locations);
        let (target, sources) = self.locations.split_last().expect("clap asks for two");
        ChangedSession::open(context, stack, &self.change)?.run(context, |session| {
            let into = session.namespace().stat(&target.path, FollowLinks::Yes);
            let into = into.is_ok_and(|inode| inode.is_directory());
            if sources.len() > 1 && !into {
                let what = format!("{target} is not a directory, which several files need");
                return Err(Error::new(Kind::NotADirectory, what));
            }
            for source in sources {
                let target = if into { target.join(source.last()) } else { target.clone() };
                self.copy(session, source, &target, context.umask)
                    .map_err(|error| error.within(format!("copy {source} to {target}")))?;
            }
            Ok(())
        })
    }

    fn copy(
        &self,
        session: &Session,
        source: &StackPath,
        target: &StackPath,
        umask: u32,
    ) -> Result<()> {
        if let Some(key) = entry::find_key(session.namespace(), &source.path)? {
            let (inode, values) = key.key_file(&session.namespace().layers().source().store)?;
            return self.key(session, (&inode, &values), &target.path, umask);
        }
        let follow = if self.recursive { FollowLinks::No } else { FollowLinks::Yes };
        let found = session.namespace().find(&source.path, follow)?;
        if !found.inode.is_directory() {
            return self.file(session, &found, &target.path, umask);
        }
        if !self.recursive {
            let what = "a directory: add -r to copy all that is in it";
            return Err(Error::new(Kind::IsADirectory, what));
        }
        let (from, to) = (normalized(&source.path), normalized(&target.path));
        if to == from || from == b"/" || to.starts_with(&[&from[..], b"/"].concat()) {
            return Err(Error::new(Kind::Invalid, "a directory cannot be copied into itself"));
        }
        // Directories get their final modes only after they are filled.
        let mut made = Vec::new();
        session.namespace().traverse(
            &source.path,
            FollowLinks::No,
            WalkOrder::Stored,
            &mut |step| {
                let visit = match step {
                    WalkStep::Entry(visit) => visit,
                    WalkStep::Left(_) => return Ok(WalkNext::Into),
                    WalkStep::Unreadable(visit, error) => {
                        return Err(source.with_path(visit.path).in_error(error));
                    }
                };
                let path = [&to, &visit.path[from.len()..]].concat();
                if visit.inode.is_directory() {
                    make_dir(session, &path)?;
                    made.push((path, visit.inode.clone()));
                } else {
                    let found = session.namespace().find(visit.path, FollowLinks::No)?;
                    self.file(session, &found, &path, umask)?;
                }
                Ok(WalkNext::Into)
            },
        )?;
        made.iter().rev().try_for_each(|(path, inode)| {
            self.give_attributes(
                session,
                &session.namespace().find(path, FollowLinks::No)?,
                inode,
                umask,
            )
        })
    }

    /// Copies a key of an indexed directory, whose values become a file.
    fn key(
        &self,
        session: &Session,
        (inode, values): (&Inode, &[u8]),
        path: &[u8],
        umask: u32,
    ) -> Result<()> {
        let mut left = values;
        let mut fill = |buffer: &mut [u8]| {
            let (now, later) = left.split_at(left.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            left = later;
            Ok(now.len())
        };
        let (dir, name) = session.namespace().locate(path)?;
        match session.namespace().lookup(&dir, name, false) {
            Err(error) if error.kind() == Kind::NotFound => {
                session.create_with(&dir, name, 0o600, &mut fill)?;
            }
            existing => {
                session.namespace().identity().check(WRITE, &existing?, name)?;
                session.rewrite(&dir, name, &mut fill)?;
                if !self.preserve {
                    return Ok(());
                }
            }
        }
        self.give_attributes(
            session,
            &session.namespace().find(path, FollowLinks::No)?,
            inode,
            umask,
        )
    }

    /// Copies anything but a directory.
    fn file(&self, session: &Session, from: &PathTarget, path: &[u8], umask: u32) -> Result<()> {
        let (dir, name) = session.namespace().locate(path)?;
        let inode = &from.inode;
        match inode.kind() {
            Some(FileKind::File) => return self.regular(session, from, (&dir, name), umask),
            Some(FileKind::Symlink) => session.symlink(&dir, name, &inode.content)?,
            Some(FileKind::Indexed) | None => {
                return Err(Error::new(Kind::Invalid, "an indexed directory cannot be copied"));
            }
            Some(kind) => session.mknod(&dir, name, kind, 0o600, inode.rdev)?,
        };
        self.give_attributes(
            session,
            &session.namespace().find(path, FollowLinks::No)?,
            inode,
            umask,
        )
    }

    fn regular(
        &self,
        session: &Session,
        from: &PathTarget,
        (dir, name): (&Dir, &[u8]),
        umask: u32,
    ) -> Result<()> {
        session.namespace().identity().check(READ, &from.inode, &from.name)?;
        let existing = match session.namespace().lookup(dir, name, false) {
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        let to = match &existing {
            Some(existing) if existing.id == from.inode.id => {
                return Err(Error::new(Kind::Invalid, "they are the same file"));
            }
            Some(existing) => {
                session.namespace().identity().check(WRITE, existing, name)?;
                session.open_file(dir, name)?
            }
            None => session.create_file(dir, name, 0o600)?,
        };
        let copied = session.open_file(&from.dir, &from.name).and_then(|source| {
            session.file(&to).truncate(0)?;
            session.file(&source).copy_range(0..from.inode.size, &to, 0)?;
            session.close_file(source)
        });
        session.close_file(to)?;
        copied?;
        if existing.is_some() && !self.preserve {
            return Ok(());
        }
        let inode = session.namespace().lookup(dir, name, true)?;
        let found = PathTarget { dir: dir.clone(), name: name.to_vec(), inode };
        self.give_attributes(session, &found, &from.inode, umask)
    }

    /// Gives a copy the attributes of its original, or the permission bits of a new file.
    fn give_attributes(
        &self,
        session: &Session,
        copy: &PathTarget,
        original: &Inode,
        umask: u32,
    ) -> Result<()> {
        let is_symlink = original.kind() == Some(FileKind::Symlink);
        if !self.preserve {
            let mode = original.mode & 0o777 & !umask;
            let changes = AttributeChanges {
                mode: (!is_symlink).then_some(mode),
                ..AttributeChanges::default()
            };
            return attributes::change(session, copy, &changes);
        }
        for (name, value) in session.namespace().xattrs(original)? {
            session.set_xattr(&copy.dir, &copy.name, (&name, &value), XattrSet::Any)?;
        }
        let is_root = session.namespace().identity().is_root();
        let keeps_owner = is_root || original.uid == session.namespace().identity().uid;
        let keeps_group = is_root || session.namespace().identity().is_member(original.gid);
        let set_id = if keeps_owner && keeps_group { 0 } else { 0o6000 };
        let owner = AttributeChanges {
            uid: is_root.then_some(original.uid),
            gid: keeps_group.then_some(original.gid),
            ..AttributeChanges::default()
        };
        attributes::change(session, copy, &owner)?;
        let changes = AttributeChanges {
            mode: (!is_symlink).then_some(original.mode & !set_id),
            atime_ns: Some(original.atime_ns),
            mtime_ns: Some(original.mtime_ns),
            ..AttributeChanges::default()
        };
        attributes::change(session, copy, &changes)
    }
}

/// Creates the directory at `path` unless it exists.
fn make_dir(session: &Session, path: &[u8]) -> Result<()> {
    let (dir, name) = session.namespace().locate(path)?;
    match session.mkdir(&dir, name, 0o700) {
        Err(error) if error.kind() == Kind::Exists => session.namespace().dir(path).map(drop),
        made => made.map(drop),
    }
}

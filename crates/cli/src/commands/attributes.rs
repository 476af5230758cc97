//! Attributes: changes them on files and, with `-R`, on everything below; shared by `chmod`,
//! `chown`, `chgrp` and `touch`.

use esker_base::Result;
use esker_fs::inode::Inode;
use esker_fs::namespace::{Follow, Found};
use esker_fs::ops::Changes;
use esker_fs::session::Session;
use esker_fs::walk::{Next, Order, Step};

use crate::location::Location;

/// Changes the attributes of `found`.
pub fn change(session: &Session, found: &Found, changes: &Changes) -> Result<()> {
    match found.name.is_empty() {
        true => session.setattr_root(changes),
        false => session.setattr(&found.dir, &found.name, changes).map(drop),
    }
}

/// Applies the changes that `changes` derives from an inode to the file at `location` and, if
/// `recursive`, to everything below. A symbolic link at `location` is followed; links below are
/// skipped.
pub fn change_tree(
    session: &Session,
    location: &Location,
    recursive: bool,
    changes: impl Fn(&Inode) -> Changes,
) -> Result<()> {
    if !recursive {
        let found = session.find(&location.path, Follow::Yes)?;
        return change(session, &found, &changes(&found.inode));
    }
    session.traverse(&location.path, Follow::Yes, Order::Stored, &mut |step| {
        let visit = match step {
            Step::Entry(visit) => visit,
            Step::Left(_) => return Ok(Next::Into),
            Step::Unreadable(_, error) => return Err(error),
        };
        let follow = if visit.depth == 0 { Follow::Yes } else { Follow::No };
        let found = session.find(visit.path, follow)?;
        if found.inode.kind() != Some(esker_fs::inode::FileKind::Symlink) {
            change(session, &found, &changes(&found.inode))?;
        }
        Ok(Next::Into)
    })
}

// SPDX-License-Identifier: Apache-2.0
//! Attributes: changes them on files and, with `-R`, on everything below; shared by `chmod`,
//! `chown`, `chgrp` and `touch`.

use esker_base::Result;
use esker_fs::inode::Inode;
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session;
use esker_fs::stack::namespace::{FollowLinks, PathTarget};
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep};

use crate::location::StackPath;

/// Changes the attributes of `found`.
pub fn change(session: &Session, found: &PathTarget, changes: &AttributeChanges) -> Result<()> {
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
    location: &StackPath,
    recursive: bool,
    changes: impl Fn(&Inode) -> AttributeChanges,
) -> Result<()> {
    if !recursive {
        let changed = session
            .namespace()
            .find(&location.path, FollowLinks::Yes)
            .and_then(|found| change(session, &found, &changes(&found.inode)));
        return changed.map_err(|error| location.in_error(error));
    }
    session.namespace().traverse(&location.path, FollowLinks::Yes, WalkOrder::Stored, &mut |step| {
        let visit = match step {
            WalkStep::Entry(visit) => visit,
            WalkStep::Left(_) => return Ok(WalkNext::Into),
            WalkStep::Unreadable(visit, error) => {
                return Err(location.with_path(visit.path).in_error(error));
            }
        };
        let follow = if visit.depth == 0 { FollowLinks::Yes } else { FollowLinks::No };
        let found = session.namespace().find(visit.path, follow)?;
        if found.inode.kind() != Some(esker_fs::inode::FileKind::Symlink) {
            change(session, &found, &changes(&found.inode))?;
        }
        Ok(WalkNext::Into)
    })
}

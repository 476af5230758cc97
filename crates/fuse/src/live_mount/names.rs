// SPDX-License-Identifier: Apache-2.0
//! Names: looks up, makes, moves and removes files of a live namespace for the kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esker_base::{Kind, Result};
use esker_fs::inode::{FileKind, SeatFile};
use esker_fs::ops::{NewFile, RenameFlags};
use esker_live::client::{
    Answer, FAR_ATTEMPTS, LiveDir, LiveFile, Request, is_absent, take_entries,
};
use esker_live::wire::{LiveAttributes, PATH_BYTES_MAX, take_attributes};
use fuser::{Errno, FileAttr};

use super::live_node::{ContentState, FileReference, LiveNode};
use super::live_state::LiveState;
use super::prefetched::{LookupPlan, PREFETCHED_ENTRIES_MAX};

impl LiveState {
    /// The node of a directory.
    fn directory(&self, number: u64) -> Result<Arc<LiveNode>, Errno> {
        let node = self.node(number)?;
        match node.kind {
            FileKind::Directory => Ok(node),
            // Indexed directories are read in snapshots.
            FileKind::Indexed => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The attributes for the kernel of `name` in `parent`, and the time for which it may keep
    /// them.
    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Result<(FileAttr, Duration), Errno> {
        let parent = self.directory(parent)?;
        let now_ns = self.clock.monotonic_ns();
        let (found, ttl) = match self.prefetched.plan(parent.number, name, (now_ns, self.ttl)) {
            LookupPlan::Known(found, ttl) => (found, ttl),
            plan => {
                let answer = self.call(Request::lookup(&parent.dir(), &[name]))?;
                let found = answer.only(take_attributes).map_err(|error| self.errno(&error))?;
                if let LookupPlan::ReadAll(changes) = plan {
                    self.prefetch(&parent, changes)?;
                }
                (found, self.ttl)
            }
        };
        // The kernel would check permissions by the attributes that it was named with.
        let found = self.at_own_seat(&parent.dir(), name, found)?.ok_or(Errno::EIO)?;
        let node = self.intern(&parent, name, &found);
        Ok((self.shown(&node, &found), ttl))
    }

    /// Returns the current attributes of what was found as `name` in `dir`: what is at another seat has
    /// them there, and they are unknown (`None`) while its server does not answer.
    ///
    /// # Errors
    /// `ENOENT` for a file that lost the name meanwhile.
    pub(super) fn at_own_seat(
        &self,
        dir: &LiveDir,
        name: &[u8],
        mut found: LiveAttributes,
    ) -> Result<Option<LiveAttributes>, Errno> {
        let mut attempts = 0;
        loop {
            let Some((own, own_name)) = dir.at_own_seat(name, &found) else {
                return Ok(Some(found));
            };
            let [answer] = self.call_all([Request::attributes(&LiveFile::at(&own, &own_name))])?;
            let LiveAttributes { seat, seat_file, .. } = found;
            match answer.and_then(|answer| answer.only(take_attributes)) {
                Ok(attributes) => {
                    return Ok(Some(LiveAttributes { seat, seat_file, ..attributes }));
                }
                // It is being removed.
                Err(error) if is_absent(error.kind()) && seat_file.is_none() => {
                    return Ok(Some(found));
                }
                // The name stands for another file since, or what was read ahead is old.
                Err(error) if is_absent(error.kind()) && attempts < FAR_ATTEMPTS => {
                    let [answer] = self.call_all([Request::lookup(dir, &[name])])?;
                    match answer.and_then(|answer| answer.only(take_attributes)) {
                        // Who may only list the directory learns of no file in it.
                        Err(error) if error.kind() == Kind::Denied => return Ok(None),
                        again => found = again.map_err(|error| self.errno(&error))?,
                    }
                }
                Err(error) if is_absent(error.kind()) => return Err(Errno::ENOENT),
                Err(error) if error.kind() == Kind::Unavailable => return Ok(None),
                Err(error) => return Err(self.errno(&error)),
            }
            attempts += 1;
        }
    }

    /// Reads all entries of `parent` for later look-ups.
    fn prefetch(&self, parent: &LiveNode, changes: u64) -> Result<(), Errno> {
        if parent.dir().is_spread() {
            // It is large.
            return Ok(());
        }
        let read_ns = self.clock.monotonic_ns();
        let list = Request::list(&parent.dir(), b"", PREFETCHED_ENTRIES_MAX);
        if let Ok((is_end, entries)) = self.call(list)?.only(take_entries) {
            let entries = is_end.then_some(entries);
            self.prefetched.keep(parent.number, (read_ns, changes), entries);
        }
        Ok(())
    }

    /// Makes `new` at `name` in `parent`; returns its attributes for the kernel.
    pub(super) fn make(&self, parent: u64, name: &[u8], new: &NewFile) -> Result<FileAttr, Errno> {
        let parent = self.directory(parent)?;
        let losses = self.seats.losses();
        let make = Request::make_node(&parent.dir(), name, (new, false));
        let [made] = self.call_all([self.change(make)])?;
        let made = self.attributes_in(made)?;
        let node = self.intern_made(&parent, (name, &made), losses);
        Ok(self.shown(&node, &made))
    }

    /// Creates and opens the file `new` at `name` in `parent`; returns its attributes for the
    /// kernel.
    pub(super) fn create(
        &self,
        parent: u64,
        name: &[u8],
        (new, is_exclusive): (&NewFile, bool),
    ) -> Result<FileAttr, Errno> {
        let parent = self.directory(parent)?;
        let make = Request::make_node(&parent.dir(), name, (new, true));
        let server = self.seats.server_of(&make).map_err(|error| self.errno(&error))?;
        let losses = self.seats.losses();
        let [made] = self.call_all([self.change(make)])?;
        let made = self.attributes_in(made).map_err(|errno| {
            // Without O_EXCL, the kernel looks up the file that another client made, and checks
            // whether the caller may open it.
            let is_there = i32::from(errno) == i32::from(Errno::EEXIST);
            if is_there && !is_exclusive { Errno::ESTALE } else { errno }
        })?;
        let node = self.intern_made(&parent, (name, &made), losses);
        let mut opens = node.opens.lock();
        self.count_open(&mut opens, ContentState::of(&made));
        self.open_again_since(&node, server);
        drop(opens);
        Ok(self.shown(&node, &made))
    }

    /// Adds `name` in `parent` as a name of the file `number`; returns the attributes for the
    /// kernel.
    pub(super) fn link(&self, number: u64, parent: u64, name: &[u8]) -> Result<FileAttr, Errno> {
        let (node, parent) = (self.node(number)?, self.directory(parent)?);
        let (old, dir) = (node.reference(), parent.dir());
        let losses = self.seats.losses();
        if old.file().dir.seat_of(old.file().name) != dir.seat_of(name) {
            return self.link_across(&old, (&parent, name), losses);
        }
        let [linked] = self.call_all([self.change(Request::link(&old.file(), &dir, name))])?;
        let linked = self.attributes_in(linked)?;
        let node = self.intern_made(&parent, (name, &linked), losses);
        Ok(self.shown(&node, &linked))
    }

    /// Adds `name` in `parent`, at another seat, as a name of the file `old`.
    fn link_across(
        &self,
        old: &FileReference,
        (parent, name): (&Arc<LiveNode>, &[u8]),
        losses: u64,
    ) -> Result<FileAttr, Errno> {
        let dir = parent.dir();
        let link = Request::link_across(&old.file(), &dir, name).durable();
        let [linked] = self.call_all([link])?;
        let linked = self.attributes_in(linked)?;
        let [found] = self.call_all([Request::lookup(&dir, &[name])])?;
        // Another client may have removed the name since.
        let place = found_in(found).filter(|found| found.id == linked.id).ok_or(Errno::ENOENT)?;
        let LiveAttributes { seat, seat_file, .. } = place;
        let linked = LiveAttributes { seat, seat_file, ..linked };
        let node = self.intern_made(parent, (name, &linked), losses);
        Ok(self.shown(&node, &linked))
    }

    pub(super) fn unlink(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let parent = self.directory(parent)?;
        let dir = parent.dir();
        self.track_change(&[parent.id], || {
            let unlink = self.change(Request::unlink(&dir, &[name]));
            let [found, done] = self.call_all([Request::lookup(&dir, &[name]), unlink])?;
            self.done(done)?;
            self.lost_name(found_in(found));
            Ok(())
        })
    }

    /// Marks the node of a file that had the attributes in `found` before it lost a name to this mount, if
    /// that was its last one.
    fn lost_name(&self, found: Option<LiveAttributes>) {
        let Some(found) = found else { return };
        let Some(node) = self.nodes.find(found.id, found.kind) else { return };
        let is_last = match found.seat_file {
            None => found.nlink <= 1,
            Some(file) => self.has_lost_all_names(&file),
        };
        if is_last {
            node.is_unnamed.store(true, Ordering::Relaxed);
        }
    }

    /// True if `file`, which has lost a name at another seat, has no other one. Its own seat counts that
    /// name until it learns of the removal.
    fn has_lost_all_names(&self, file: &SeatFile) -> bool {
        let (dir, name) = (LiveDir::seat_roots(file.seat), file.root_name());
        let by_id = LiveFile { dir: &dir, name: name.as_bytes(), id: file.id };
        let requests = [Request::lookup(&dir, &[name.as_bytes()]), Request::attributes(&by_id)];
        let Ok([at_name, at_id]) = self.call_all(requests) else { return false };
        let found = |answer: Result<Answer>| answer.and_then(|answer| answer.only(take_attributes));
        match (found(at_name), found(at_id)) {
            (Ok(found), _) => found.nlink <= 1,
            (Err(_), Ok(found)) => found.nlink == 0,
            (Err(_), Err(error)) => is_absent(error.kind()),
        }
    }

    pub(super) fn rmdir(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let parent = self.directory(parent)?;
        let remove = self.change(Request::remove_directory(&parent.dir(), &[name]));
        self.track_change(&[parent.id], || {
            let [done] = self.call_all([remove])?;
            self.done(done)
        })
    }

    /// Renames `name` in `parent` to `new_name` in `new_parent`.
    pub(super) fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let (parent, new_parent) = (self.directory(parent)?, self.directory(new_parent)?);
        let (dir, new_dir) = (parent.dir(), new_parent.dir());
        let rename = self.change(Request::rename((&dir, name), (&new_dir, new_name), flags));
        let at_old = || Request::lookup(&dir, &[name]);
        let at_new = || Request::lookup(&new_dir, &[new_name]);
        if dir.seat_of(name) != new_dir.seat_of(new_name) {
            return self.rename_across((&parent, name), (&new_parent, new_name), flags);
        }
        let requests = [at_old(), at_new(), rename, at_new(), at_old()];
        let losses = self.seats.losses();
        let [source, replaced, renamed, moved, other] =
            self.track_change(&[parent.id, new_parent.id], || self.call_all(requests))?;
        self.done(renamed)?;
        let [source, replaced, moved, other] = [source, replaced, moved, other].map(found_in);
        let id = |found: &Option<LiveAttributes>| found.as_ref().map(|found| found.id);
        let changed = changed_by_rename([&source, &replaced].map(id), [&moved, &other].map(id));
        self.record_changes(&changed, losses);
        self.lost_name(replaced.filter(|_| flags != RenameFlags::Exchange));
        // The old name is there after an exchange.
        self.follow(moved, &new_parent, new_name);
        self.follow(other, &parent, name);
        Ok(())
    }

    /// Renames a file to a directory at another seat.
    fn rename_across(
        &self,
        (parent, name): (&Arc<LiveNode>, &[u8]),
        (new_parent, new_name): (&Arc<LiveNode>, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if flags == RenameFlags::Exchange {
            return Err(Errno::EXDEV);
        }
        let (dir, new_dir) = (parent.dir(), new_parent.dir());
        let at_old = || Request::lookup(&dir, &[name]);
        let at_new = || Request::lookup(&new_dir, &[new_name]);
        let losses = self.seats.losses();
        let [replaced] = self.call_all([at_new()])?;
        let replaces = flags == RenameFlags::Replace;
        let rename = Request::rename_across((&dir, name), (&new_dir, new_name), replaces);
        let [source, renamed] = self.track_change(&[parent.id, new_parent.id], || {
            self.call_all([at_old(), rename.durable()])
        })?;
        self.done(renamed)?;
        let [moved] = self.call_all([at_new()])?;
        let (source, replaced, moved) = (found_in(source), found_in(replaced), found_in(moved));
        let id = |found: &Option<LiveAttributes>| found.as_ref().map(|found| found.id);
        let changed = changed_by_rename([id(&source), None], [id(&moved), None]);
        self.record_changes(&changed, losses);
        if id(&moved) != id(&replaced) {
            self.lost_name(replaced);
        }
        self.follow(moved, new_parent, new_name);
        Ok(())
    }

    /// Records that the file `found`, if the kernel knows it, is now `name` in `parent`.
    fn follow(&self, found: Option<LiveAttributes>, parent: &Arc<LiveNode>, name: &[u8]) {
        if let Some(found) = found
            && let Some(node) = self.nodes.find(found.id, found.kind)
        {
            node.moved(parent, name, found.seat_file);
        }
    }

    /// The target of a symbolic link.
    pub(super) fn target(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let file = self.node(number)?.reference();
        let answer = self.call(Request::read_symlink(&file.file()))?;
        let target = answer.only(|input| Ok(input.bytes(PATH_BYTES_MAX, "a target")?.to_vec()));
        target.map_err(|error| self.errno(&error))
    }
}

/// The attributes that a look-up has found.
fn found_in(answer: Result<Answer>) -> Option<LiveAttributes> {
    answer.and_then(|answer| answer.only(take_attributes)).ok()
}

/// The files that a rename has changed. `before` were at the old and at the new name before it,
/// `after` at the new and at the old one after it, as far as look-ups found them: other clients may
/// have moved them meanwhile. A file at the new name that is nowhere after it was replaced.
fn changed_by_rename(before: [Option<u128>; 2], after: [Option<u128>; 2]) -> Vec<u128> {
    let [source, target] = before;
    let target = target.filter(|target| after.contains(&Some(*target)));
    let mut changed: Vec<u128> = [source, target].into_iter().chain(after).flatten().collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: after its server had died, a sync of a file that was renamed did not fail if the
    /// look-up after the rename had not found the file.
    /// Cause: only files that this look-up found were recorded as changed.
    /// Fix: so is the one that was at the old name before.
    #[test]
    fn a_file_that_is_not_found_after_its_rename_has_changed() {
        assert_eq!(changed_by_rename([Some(1), None], [None, None]), [1]);
        assert_eq!(changed_by_rename([Some(1), None], [Some(1), None]), [1]);
        assert_eq!(changed_by_rename([None, None], [Some(1), None]), [1]);
        // The file at the new name was replaced; another client has replaced the one that moved.
        assert_eq!(changed_by_rename([Some(1), Some(2)], [Some(3), None]), [1, 3]);
        // An exchange.
        assert_eq!(changed_by_rename([Some(1), Some(2)], [Some(1), Some(2)]), [1, 2]);
    }
}

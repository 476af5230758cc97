// SPDX-License-Identifier: Apache-2.0
//! Recursive removal: removes a directory of a live namespace and everything in it, by requests of
//! many names.
//!
//! Unlike a session's removal of a tree, which is one operation that hides everything below, each
//! name is removed for itself: permissions apply at each level, and other clients keep the files
//! that they have open. Directories are emptied depth first. A removal is not waited for, since a
//! server keeps the order of a client's requests, except before that of a directory at another seat:
//! what was in it is removed by another server.
//!
//! A server opens a directory whose path is too long by its name in its parent, and keeps it open for
//! the connection.

use std::collections::VecDeque;

use esker_base::{Error, Kind, Result};
use esker_fs::inode::FileKind;

use super::listing::{LIST_ENTRIES, LiveEntry, take_entries};
use super::live_dir::LiveDir;
use super::pending::Request;
use super::tree::{LiveTree, is_absent};
use crate::wire::{PATH_BYTES_MAX, take_attributes};

/// Names of one request.
const NAMES: usize = 1024;
/// Requests under way, at most.
const UNDER_WAY_MAX: usize = 64;

/// A directory that is being removed.
#[derive(Debug)]
struct DoomedDirectory {
    parent: LiveDir,
    name: Vec<u8>,
    dir: LiveDir,
    is_emptied: bool,
}

impl LiveTree {
    /// Removes the directory `name` of `dir` and everything in it, durably. What is made in it
    /// meanwhile may keep it from being removed, and what was removed before a failure stays so.
    /// Cost: a round trip for each 4,096 entries, and some for each directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`, `NotPermitted`; `NotEmpty` if another client makes
    /// files in it; `Fenced` if directories with paths of over 4,096 bytes cannot be opened again.
    pub fn remove_tree(&mut self, dir: &LiveDir, name: &[u8]) -> Result<()> {
        let top = self.lookup(dir, name)?;
        if top.kind == FileKind::Directory {
            let top = dir.child(name, &top);
            let mut removals = Removals { tree: self, under_way: VecDeque::new(), removed: 0 };
            loop {
                let removed_before = removals.removed;
                match remove_content(&mut removals, &top) {
                    // Its server keeps only so many directories open, and paths that are too long do
                    // not lead to the others: begin at the top again, as long as that helps.
                    Err(error) if is_lost(&error) && removals.removed > removed_before => {
                        removals.abandon()?;
                    }
                    emptied => break emptied?,
                }
            }
        }
        let removed = self.call(Request::remove_directory(dir, &[name]).durable())?;
        removed.outcome()
    }
}

/// Removes everything in `top`.
fn remove_content(removals: &mut Removals, top: &LiveDir) -> Result<()> {
    let mut left: Vec<DoomedDirectory> = removals.remove_files(top)?;
    while let Some(directory) = left.last_mut() {
        if directory.is_emptied {
            let DoomedDirectory { parent, name, dir, .. } = left.pop().expect("the last one");
            if dir.is_spread() || dir.place.seat != parent.seat_of(&name) {
                removals.wait_until(0)?;
            }
            removals.submit(Request::remove_directory(&parent, &[&name]))?;
        } else {
            directory.is_emptied = true;
            let is_there = removals.open_deep(directory)?;
            let dir = directory.dir.clone();
            if is_there {
                left.extend(removals.remove_files(&dir)?);
            }
        }
    }
    removals.wait_until(0)
}

/// True if a server does not have a directory open that its path does not lead to.
fn is_lost(error: &Error) -> bool {
    error.kind() == Kind::Fenced
}

/// True if the path of `dir` is too long for its server to open it by that.
fn is_deep(dir: &LiveDir) -> bool {
    dir.place.path.len() >= PATH_BYTES_MAX
}

/// The directory of `entry` in `dir`. Paths that are too long already are not made longer: they would
/// take memory with the square of the depth.
fn inner_of(dir: &LiveDir, entry: &LiveEntry) -> LiveDir {
    let mut inner = dir.child(&entry.name, &entry.attributes);
    if dir.path.len() >= PATH_BYTES_MAX {
        inner.path = dir.path.clone();
    }
    if is_deep(dir) && entry.attributes.seat.is_none() {
        inner.place.path = dir.place.path.clone();
    }
    inner
}

/// Removals under way.
struct Removals<'a> {
    tree: &'a mut LiveTree,
    /// The seats and numbers of the requests.
    under_way: VecDeque<(u16, u64)>,
    /// Names that were removed.
    removed: u64,
}

impl Removals<'_> {
    /// Has the server open a directory whose path is too long for that by its name in its parent, which
    /// is open. Returns false if another client has removed or replaced it.
    fn open_deep(&mut self, directory: &DoomedDirectory) -> Result<bool> {
        let DoomedDirectory { parent, name, dir, .. } = directory;
        if !is_deep(dir) {
            return Ok(true);
        }
        let found = self.tree.call(Request::lookup(parent, &[name]))?.only(take_attributes);
        match found {
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            found => Ok(found?.id == dir.id.0),
        }
    }

    /// Removes the files in `dir`; returns the directories in it.
    fn remove_files(&mut self, dir: &LiveDir) -> Result<Vec<DoomedDirectory>> {
        let mut directories = Vec::new();
        for part in dir.parts() {
            directories.extend(self.remove_files_of(&part)?);
        }
        Ok(directories)
    }

    /// As [`Removals::remove_files`], for those that one seat has.
    fn remove_files_of(&mut self, dir: &LiveDir) -> Result<Vec<DoomedDirectory>> {
        let mut directories = Vec::new();
        let mut last = Vec::new();
        loop {
            let answer = self.tree.call(Request::list(dir, &last, LIST_ENTRIES));
            let (is_end, page) = match answer.and_then(|answer| answer.only(take_entries)) {
                // Another client has removed it.
                Err(error) if is_absent(error.kind()) && !is_deep(dir) => {
                    return Ok(directories);
                }
                taken => taken?,
            };
            let Some(end) = page.last() else { return Ok(directories) };
            last.clone_from(&end.name);
            let (inner, files): (Vec<_>, Vec<_>) =
                page.into_iter().partition(|entry| entry.attributes.kind == FileKind::Directory);
            for batch in files.chunks(NAMES) {
                let names: Vec<&[u8]> = batch.iter().map(|entry| &entry.name[..]).collect();
                self.submit(Request::unlink(dir, &names))?;
            }
            directories.extend(inner.into_iter().map(|entry| DoomedDirectory {
                parent: dir.clone(),
                dir: inner_of(dir, &entry),
                name: entry.name,
                is_emptied: false,
            }));
            if is_end {
                return Ok(directories);
            }
        }
    }

    fn submit(&mut self, request: Request) -> Result<()> {
        let seat = request.seat();
        let number = self.tree.connection_to(seat)?.submit(request)?;
        self.under_way.push_back((seat, number));
        self.wait_until(UNDER_WAY_MAX)
    }

    /// Waits for none of the requests under way, which later ones follow.
    fn abandon(&mut self) -> Result<()> {
        for (seat, number) in std::mem::take(&mut self.under_way) {
            self.tree.connection_to(seat)?.drop_answer(number);
        }
        Ok(())
    }

    /// Waits until at most `count` requests are under way.
    fn wait_until(&mut self, count: usize) -> Result<()> {
        while self.under_way.len() > count {
            let Some((seat, number)) = self.under_way.pop_front() else { break };
            for outcome in self.tree.connection_to(seat)?.wait(number)?.outcomes()? {
                match outcome {
                    // Another client came first.
                    Err(error) if error.kind() == Kind::NotFound => {}
                    removed => {
                        removed?;
                        self.removed += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

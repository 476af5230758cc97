// SPDX-License-Identifier: Apache-2.0
//! Descriptors: the open files of traced processes, and their positions.
//!
//! A descriptor refers to an open file, which has the position; duplicates and the descriptors that
//! a forked process inherits refer to the same one. Threads share one table of descriptors.
//! Concurrency: one thread imports a log, so tables are shared by `Rc`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// An open file.
#[derive(Clone, Debug, Default)]
pub struct OpenFile {
    /// The path.
    pub path: Vec<u8>,
    /// The offset of the next read or write without one.
    pub position: u64,
    /// True if each write begins at the end of the file.
    pub appends: bool,
}

/// An open file that several descriptors may have.
pub type SharedOpenFile = Rc<RefCell<OpenFile>>;

#[derive(Clone, Debug)]
struct DescriptorEntry {
    file: SharedOpenFile,
    closes_on_exec: bool,
}

/// The descriptors of a process.
#[derive(Clone, Debug, Default)]
pub struct DescriptorTable {
    entries: HashMap<i32, DescriptorEntry>,
}

/// A table that the threads of a process share.
pub type SharedDescriptorTable = Rc<RefCell<DescriptorTable>>;

impl DescriptorTable {
    /// The number of descriptors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Puts a newly opened file under `number`.
    pub fn open(&mut self, number: i32, file: OpenFile, closes_on_exec: bool) {
        let file = Rc::new(RefCell::new(file));
        self.entries.insert(number, DescriptorEntry { file, closes_on_exec });
    }

    /// The open file of `number`. One that was opened before the log begins is at `path`.
    pub fn file(&mut self, number: i32, path: &[u8]) -> SharedOpenFile {
        let entry = self.entries.entry(number).or_insert_with(|| {
            let file = OpenFile { path: path.to_owned(), ..OpenFile::default() };
            DescriptorEntry { file: Rc::new(RefCell::new(file)), closes_on_exec: false }
        });
        entry.file.clone()
    }

    /// Makes `new` refer to the open file of `old`.
    pub fn duplicate(&mut self, old: i32, new: i32, path: &[u8], closes_on_exec: bool) {
        let file = self.file(old, path);
        self.entries.insert(new, DescriptorEntry { file, closes_on_exec });
    }

    /// Removes `number`.
    pub fn close(&mut self, number: i32) {
        self.entries.remove(&number);
    }

    /// Removes all descriptors from `first` to `last`.
    pub fn close_range(&mut self, first: i64, last: i64) {
        self.entries.retain(|number, _| !(first..=last).contains(&i64::from(*number)));
    }

    /// Removes the descriptors that a new program does not inherit.
    pub fn execute(&mut self) {
        self.entries.retain(|_, entry| !entry.closes_on_exec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_and_children_share_positions() {
        let mut table = DescriptorTable::default();
        table.open(3, OpenFile { path: b"/a".to_vec(), ..OpenFile::default() }, true);
        table.duplicate(3, 4, b"/a", false);
        let mut child = table.clone();
        child.file(4, b"").borrow_mut().position = 7;
        assert_eq!(table.file(3, b"").borrow().position, 7);
        table.close(3);
        assert_eq!(child.file(3, b"").borrow().position, 7);
        child.execute();
        assert_eq!(child.file(3, b"/b").borrow().position, 0, "closed on exec");
        assert_eq!(child.file(4, b"").borrow().path, b"/a");
        child.close_range(0, 9);
        assert_eq!(child.file(4, b"/c").borrow().path, b"/c");
    }
}

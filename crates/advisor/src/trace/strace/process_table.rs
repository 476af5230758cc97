// SPDX-License-Identifier: Apache-2.0
//! Process table: the threads and processes of a log, the descriptors they inherit, and their
//! ranks.
//!
//! A thread may appear before the call that made it has returned: then it is the child of the
//! thread that is in such a call, the one that began last if there are several.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::begin_order::BeginTicket;
use super::descriptors::SharedDescriptorTable;
use super::system_call::SystemCall;

/// The beginning of a call that has not returned.
#[derive(Debug)]
pub struct UnfinishedCall {
    /// The call as far as the log has it.
    pub text: Vec<u8>,
    /// Time at which it began.
    pub begin_ns: u64,
    /// Its place, if it becomes a record.
    pub ticket: Option<BeginTicket>,
}

/// A traced thread.
#[derive(Debug)]
pub struct TracedThread {
    /// The process that it belongs to.
    pub process: u32,
    /// The number of that process.
    pub rank: u32,
    /// The descriptors of the process.
    pub descriptors: SharedDescriptorTable,
    /// The working directory, empty while it is unknown.
    pub directory: Rc<RefCell<Vec<u8>>>,
    /// The call that it is in.
    pub unfinished: Option<UnfinishedCall>,
}

/// Maximum number of threads at a time: the search for a new one's parent visits all.
const THREADS_MAX: usize = 1 << 16;

/// Descriptors of all processes at a time, 24 bytes each.
const DESCRIPTORS_MAX: usize = 1 << 24;

/// All threads that have not ended.
#[derive(Debug, Default)]
pub struct ProcessTable {
    threads: HashMap<u32, TracedThread>,
    ranks: u32,
    /// Descriptors of all tables at the last count, and those that children have inherited since.
    inherited: usize,
}

impl ProcessTable {
    /// The thread of this id, which is made if it is new.
    pub fn thread(&mut self, id: u32) -> &mut TracedThread {
        if !self.threads.contains_key(&id) {
            let in_clone = |thread: &TracedThread| {
                let call = thread.unfinished.as_ref()?;
                is_clone(&call.text).then_some(call.begin_ns)
            };
            let parents = self
                .threads
                .iter()
                .filter_map(|(id, thread)| in_clone(thread).map(|begin_ns| (begin_ns, *id)));
            match parents.max() {
                Some((_, parent)) => {
                    let call = self.threads[&parent].unfinished.as_ref();
                    let text = call.map(|call| call.text.clone()).unwrap_or_default();
                    self.inherit(parent, id, &text);
                }
                None => {
                    let thread = TracedThread {
                        process: id,
                        rank: self.ranks,
                        descriptors: SharedDescriptorTable::default(),
                        directory: Rc::default(),
                        unfinished: None,
                    };
                    self.ranks += 1;
                    self.threads.insert(id, thread);
                }
            }
        }
        self.threads.get_mut(&id).expect("made above")
    }

    /// Adds the thread that a call of `parent` has made, unless it has appeared.
    pub fn cloned(&mut self, parent: u32, call: &SystemCall<'_>, text: &[u8]) {
        let child = call.result.and_then(|child| u32::try_from(child).ok());
        if let Some(child) = child.filter(|child| !self.threads.contains_key(child)) {
            self.inherit(parent, child, text);
        }
    }

    /// Forgets a thread that has ended; returns the call that it was in.
    pub fn exit(&mut self, id: u32) -> Option<UnfinishedCall> {
        self.threads.remove(&id)?.unfinished
    }

    /// Calls that no line has finished.
    pub fn unfinished(&self) -> u64 {
        self.threads.values().filter(|thread| thread.unfinished.is_some()).count() as u64
    }

    /// True if a log claims more threads or descriptors at a time than a node has. Each new process
    /// may double the descriptors, so that a short log would fill the memory.
    pub fn is_too_large(&mut self) -> bool {
        self.exceeds(THREADS_MAX, DESCRIPTORS_MAX)
    }

    fn exceeds(&mut self, threads_max: usize, descriptors_max: usize) -> bool {
        if self.inherited > descriptors_max {
            // Threads share the table of their process.
            let processes = self.threads.iter().filter(|(id, thread)| thread.process == **id);
            self.inherited = processes.map(|(_, thread)| thread.descriptors.borrow().len()).sum();
        }
        self.inherited > descriptors_max || self.threads.len() > threads_max
    }

    fn inherit(&mut self, parent: u32, child: u32, text: &[u8]) {
        let shares = |flag: &[u8]| text.windows(flag.len()).any(|window| window == flag);
        let is_thread = shares(b"CLONE_THREAD");
        let rank = self.ranks;
        let Some(parent) = self.threads.get(&parent) else { return };
        let descriptors = match shares(b"CLONE_FILES") {
            true => parent.descriptors.clone(),
            false => {
                let descriptors = parent.descriptors.borrow().clone();
                self.inherited = self.inherited.saturating_add(descriptors.len());
                Rc::new(RefCell::new(descriptors))
            }
        };
        let directory = match shares(b"CLONE_FS") {
            true => parent.directory.clone(),
            false => Rc::new(RefCell::new(parent.directory.borrow().clone())),
        };
        let (process, rank) = if is_thread { (parent.process, parent.rank) } else { (child, rank) };
        self.ranks += u32::from(!is_thread);
        let thread = TracedThread { process, rank, descriptors, directory, unfinished: None };
        self.threads.insert(child, thread);
    }
}

/// True for calls that make a thread or a process.
pub fn is_clone(text: &[u8]) -> bool {
    [&b"clone("[..], b"clone3(", b"fork(", b"vfork("].iter().any(|name| text.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a short log of descriptors and forks took all memory, as each child has a copy of
    /// all descriptors.
    #[test]
    fn more_descriptors_than_a_node_has_are_told() {
        let mut table = ProcessTable::default();
        for number in 0..10 {
            table.thread(1).descriptors.borrow_mut().file(number, b"/a");
        }
        for child in 2..=9 {
            table.inherit(1, child, b"fork(");
            assert_eq!(table.exceeds(100, 79), child > 8, "{child} processes");
        }
        assert!(!table.is_too_large() && table.exceeds(8, 1_000));
        // Those of processes that have ended do not count.
        for child in 2..=9 {
            table.exit(child);
            table.inherit(1, child, b"fork(");
        }
        assert!(!table.exceeds(100, 100));
    }
}

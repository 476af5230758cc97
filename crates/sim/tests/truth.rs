// SPDX-License-Identifier: Apache-2.0
//! Truth: the expected contents of names and change sets, according to the results that actors got.
//!
//! Invariant: an actor updates it in the same turn in which it learns of a change.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_fs::inode::FileKind;
use esker_table::manifest::SetId;
use parking_lot::Mutex;

use crate::operation::{ANY_TIME, TargetPath, Tree, difference};
use crate::reference::Reference;

/// Certainty that a name is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// Its publisher got a success.
    Published,
    /// No caller has got a success yet.
    Promised,
    /// It was published; the outcome of unpublishing it is unknown.
    Withdrawn,
}

/// A name and its expected tree.
#[derive(Clone, Debug)]
pub struct NamedTree {
    pub certainty: Certainty,
    pub reference: Reference,
    /// An alternative, until the first read: another thread made a change while it was published.
    pub other: Option<Reference>,
}

impl NamedTree {
    /// Returns how `found` differs from the expected tree, if it does. From then on the name must
    /// show the same tree forever.
    pub fn compare(&mut self, found: &Tree) -> Option<String> {
        let reason = differs(found, &self.reference);
        match (&reason, self.other.take()) {
            (Some(_), Some(other)) if differs(found, &other).is_none() => {
                self.reference = other;
                None
            }
            _ => reason,
        }
    }
}

/// The state after an operation.
#[derive(Clone, Debug)]
pub struct Version {
    pub reference: Reference,
    /// The path of the file whose content a crash may leave in any state between the old and the
    /// new.
    pub loose: Option<Vec<u8>>,
    /// The uncertain parts of a file that is being written in place.
    pub doubt: Option<Doubt>,
}

/// Possible states of a file that is being written in place, after a crash.
#[derive(Clone, Debug)]
pub struct Doubt {
    pub path: Vec<u8>,
    /// Its contents at the last sync and after each change since: each byte is from one of them.
    pub contents: Arc<Mutex<Vec<Arc<Vec<u8>>>>>,
    /// The least length that it has.
    pub firm_bytes: usize,
}

impl Doubt {
    fn allows(&self, found: &[u8]) -> bool {
        let contents = self.contents.lock();
        let is_of_one =
            |(at, byte): (usize, &u8)| contents.iter().any(|content| content.get(at) == Some(byte));
        found.len() >= self.firm_bytes && found.iter().enumerate().all(is_of_one)
    }
}

/// The operations of a set's writer, in order.
#[derive(Clone, Debug)]
pub struct Lineage {
    /// The initial state, and the state after each operation.
    pub states: Vec<Version>,
    /// Index of the newest state that survives any crash.
    pub durable: usize,
    /// The operation in progress, or one whose outcome is unknown.
    pub pending: Option<Version>,
    /// The process that writes the set.
    pub owner: u64,
    /// True once its publication has begun.
    pub is_publishing: bool,
}

/// The stack of two published names.
#[derive(Clone, Debug)]
pub struct StackedTree {
    pub names: [String; 2],
    pub tree: Tree,
}

/// The expected state of a store.
#[derive(Debug, Default)]
pub struct Truth {
    pub stacks: Vec<StackedTree>,
    pub names: BTreeMap<String, NamedTree>,
    pub lineages: BTreeMap<SetId, Lineage>,
    next_name: u64,
}

impl Truth {
    /// Returns a new name, which may show `reference` from now on.
    pub fn promise_name(&mut self, reference: &Reference) -> String {
        self.next_name += 1;
        let name = format!("n{}", self.next_name);
        let reference = reference.clone();
        let named = NamedTree { certainty: Certainty::Promised, reference, other: None };
        self.names.insert(name.clone(), named);
        name
    }

    /// Records that the publisher of `name` got a success. A keeper may have removed the name
    /// since.
    pub fn confirm_name(&mut self, name: &str) {
        if let Some(named) = self.names.get_mut(name) {
            named.certainty = Certainty::Published;
        }
    }

    pub fn is_published(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|named| named.certainty == Certainty::Published)
    }
}

/// Removes times from `tree`: they depend on the turns of other actors.
fn timeless(mut tree: Tree) -> Tree {
    for leaf in tree.values_mut() {
        let attributes = &mut leaf.attributes;
        (attributes.mtime_ns, attributes.ctime_ns, attributes.atime_ns) =
            (ANY_TIME, ANY_TIME, ANY_TIME);
    }
    tree
}

/// Returns how `found` differs from `reference`, if it does.
pub fn differs(found: &Tree, reference: &Reference) -> Option<String> {
    difference(found, &timeless(reference.tree()))
}

/// Returns whether two states differ in more than times: an operation that changes nothing need not
/// survive.
pub fn is_change(before: &Reference, after: &Reference) -> bool {
    differs(&before.tree(), after).is_some()
}

/// Replaces the content of the file at `path` of `expected`, under all its names, by that in
/// `found`, if it `is_allowed`.
fn allow_content(
    expected: &mut Tree,
    found: &Tree,
    path: &[u8],
    is_allowed: impl Fn(&[u8]) -> bool,
) {
    let Some(first_name) = expected.get(path).map(|leaf| leaf.first_name.clone()) else { return };
    for (path, leaf) in expected {
        let found = found.get(path).filter(|found| {
            leaf.first_name == first_name && found.attributes.kind == FileKind::File
        });
        if let Some(found) = found.filter(|found| is_allowed(&found.bytes)) {
            leaf.bytes.clone_from(&found.bytes);
            leaf.attributes.size = found.attributes.size;
        }
    }
}

impl Version {
    /// Returns how `found` differs from the possible states after a crash, if it does; `is_durable`
    /// if this version survives.
    fn compare(&self, found: &Tree, is_durable: bool) -> Option<String> {
        let mut expected = timeless(self.reference.tree());
        if let Some(path) = self.loose.as_ref().filter(|_| !is_durable) {
            allow_content(&mut expected, found, path, |_| true);
        }
        if let Some(doubt) = &self.doubt {
            allow_content(&mut expected, found, &doubt.path, |bytes| doubt.allows(bytes));
        }
        difference(found, &expected)
    }
}

impl Lineage {
    pub fn new(reference: Reference, owner: u64) -> Self {
        let states = vec![Version { reference, loose: None, doubt: None }];
        Self { states, durable: 0, pending: None, owner, is_publishing: false }
    }

    /// The newest state.
    pub fn last(&self) -> &Reference {
        &self.states.last().expect("there is the one it began with").reference
    }

    /// Continues from the state `found`, with writer `owner`.
    ///
    /// # Errors
    /// If `found` is not the state after any operation from the last durable one on.
    pub fn recover(&mut self, found: &Tree, owner: u64) -> Result<(), String> {
        let mut reasons = Vec::new();
        self.states.extend(self.pending.take());
        for index in (self.durable..self.states.len()).rev() {
            let Some(reason) = self.states[index].compare(found, index == self.durable) else {
                self.states.truncate(index + 1);
                let version = self.states.last_mut().expect("it was just compared");
                let doubt = version.doubt.take().map(|doubt| doubt.path);
                for path in version.loose.take().into_iter().chain(doubt) {
                    adopt_content(&mut version.reference, &path, found);
                }
                (self.durable, self.owner) = (index, owner);
                return Ok(());
            };
            reasons.push(format!("state {index}: {reason}"));
        }
        Err(format!(
            "a state that none of the operations {}..={} leaves:\n{}",
            self.durable,
            self.states.len() - 1,
            reasons.join("\n")
        ))
    }
}

/// Takes over the content of the file at `path` from `found`.
pub fn adopt_content(reference: &mut Reference, path: &[u8], found: &Tree) {
    if let Some(leaf) = found.get(path) {
        let at = TargetPath::of(&[b"/", path].concat());
        // If the path is not a file in the reference either, there is no content to take over.
        let _ = reference.replace_content(&at, leaf.bytes.clone());
    }
}

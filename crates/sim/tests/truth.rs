//! Truth: what names and change sets hold if nothing is wrong, as actors were told.
//!
//! Invariant: an actor changes it in the same turn in which it learns of the change.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_fs::inode::FileKind;
use esker_table::manifest::SetId;
use parking_lot::Mutex;

use crate::operation::{ANY_TIME, Place, Tree, difference};
use crate::reference::Reference;

/// How certain it is that a name is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// Its publisher was told so.
    Published,
    /// Nobody was told that it is published.
    Promised,
    /// It was published; the outcome of taking it back is unknown.
    Withdrawn,
}

/// A name and what it shows.
#[derive(Clone, Debug)]
pub struct NamedTree {
    pub certainty: Certainty,
    pub reference: Reference,
    /// What it may show instead, until it is read for the first time: another thread made a change
    /// meanwhile.
    pub other: Option<Reference>,
}

impl NamedTree {
    /// How `found` differs from what the name shows, if it does. It shows that for ever.
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

/// What an operation leaves.
#[derive(Clone, Debug)]
pub struct Version {
    pub reference: Reference,
    /// The path of the file whose content a crash may leave in any state between before and after.
    pub loose: Option<Vec<u8>>,
    /// What is not certain of a file that is written in place.
    pub doubt: Option<Doubt>,
}

/// What a crash may leave of a file that is written in place.
#[derive(Clone, Debug)]
pub struct Doubt {
    pub path: Vec<u8>,
    /// What it held at its last sync and after each change since: each of its bytes is that of one.
    pub contents: Arc<Mutex<Vec<Arc<Vec<u8>>>>>,
    /// How many bytes it has at least.
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
    /// The state at the start, and after each operation.
    pub states: Vec<Version>,
    /// The state of this index survives everything.
    pub durable: usize,
    /// The operation under way, or one whose outcome is unknown.
    pub pending: Option<Version>,
    /// The process that writes the set.
    pub owner: u64,
    /// Whether publishing it was begun.
    pub is_publishing: bool,
}

/// What two published names show over each other.
#[derive(Clone, Debug)]
pub struct StackedTree {
    pub names: [String; 2],
    pub tree: Tree,
}

/// What is true of a store.
#[derive(Debug, Default)]
pub struct Truth {
    pub stacks: Vec<StackedTree>,
    pub names: BTreeMap<String, NamedTree>,
    pub lineages: BTreeMap<SetId, Lineage>,
    next_name: u64,
}

impl Truth {
    /// A name that was never used, which may show `reference` from now on.
    pub fn promise_name(&mut self, reference: &Reference) -> String {
        self.next_name += 1;
        let name = format!("n{}", self.next_name);
        let reference = reference.clone();
        let named = NamedTree { certainty: Certainty::Promised, reference, other: None };
        self.names.insert(name.clone(), named);
        name
    }

    /// The publisher of `name` was told that it is published. A keeper may have removed it since.
    pub fn confirm_name(&mut self, name: &str) {
        if let Some(named) = self.names.get_mut(name) {
            named.certainty = Certainty::Published;
        }
    }

    pub fn is_published(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|named| named.certainty == Certainty::Published)
    }
}

/// `tree` without times, which depend on when other actors have their turns.
fn timeless(mut tree: Tree) -> Tree {
    for leaf in tree.values_mut() {
        let attributes = &mut leaf.attributes;
        (attributes.mtime_ns, attributes.ctime_ns, attributes.atime_ns) =
            (ANY_TIME, ANY_TIME, ANY_TIME);
    }
    tree
}

/// How `found` differs from what `reference` holds, if it does.
pub fn differs(found: &Tree, reference: &Reference) -> Option<String> {
    difference(found, &timeless(reference.tree()))
}

/// Whether two states differ in more than times: what changes nothing need not survive.
pub fn is_change(before: &Reference, after: &Reference) -> bool {
    differs(&before.tree(), after).is_some()
}

/// Gives the file at `path` of `expected`, under all of its names, the content that `found` shows, where
/// that `is_allowed`.
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
    /// How `found` differs from what a crash may leave of it; `is_durable` if it survives.
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

    /// Goes on from what `found` shows, for `owner`.
    ///
    /// # Errors
    /// If it is the state after none of the operations from the last durable one on.
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

/// Gives the file at `path` the content that `found` shows.
pub fn adopt_content(reference: &mut Reference, path: &[u8], found: &Tree) {
    if let Some(leaf) = found.get(path) {
        let at = Place::of(&[b"/", path].concat());
        // A path that leads to no file in the reference either has no content to adopt.
        let _ = reference.replace_content(&at, leaf.bytes.clone());
    }
}

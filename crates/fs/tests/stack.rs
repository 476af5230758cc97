// SPDX-License-Identifier: Apache-2.0
//! Stacks: published sets on top of one another in all shapes, compared with a merge of maps.
//!
//! The reference keeps for each set a map from (directory, name) to the set's record. A look-up
//! searches the maps from the top down and the first record decides: a file shadows, a tombstone
//! hides, and directories of one identity merge. A change of a directory's entries also changes its
//! times, and thus writes a record of its place. Directories are made again, renamed, and removed
//! with everything in them. If two sets moved a directory to different places, a stack of both may
//! show it twice; such stacks are opened, but not compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use esker_base::random::Random;
use esker_base::store::MemoryStore;
use esker_fs::inode::{DirId, FileKind};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::SetId;

use crate::campaign;
use crate::model::{check_sound, tree_options};
use crate::random_operation::pick;
use crate::subject;

const NAMES: &[&[u8]] = &[b"a", b"b", b"c", b"d"];

/// A set's record of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Record {
    Tombstone { generation: u64 },
    Directory { id: DirId, generation: u64 },
    File { content: Vec<u8>, generation: u64 },
}

impl Record {
    /// The generation of a directory made at the name afterwards.
    fn next_generation(&self) -> u64 {
        match self {
            Self::Directory { generation, .. } => generation + 1,
            Self::Tombstone { generation } | Self::File { generation, .. } => *generation,
        }
    }
}

type Layer = BTreeMap<(DirId, Vec<u8>), Record>;

/// A published set.
#[derive(Clone, Debug)]
struct Set {
    id: SetId,
    bases: Vec<usize>,
    layer: Layer,
}

/// Layers in order of precedence.
struct Stack<'a> {
    layers: Vec<&'a Layer>,
}

/// Meaning of a path: a directory, or a file with this content.
type Paths = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Returns the sets of `roots` and all that they build on, in order of a search by priority, but
/// each only after all sets that build on it.
fn topological_order(sets: &[Set], roots: &[usize]) -> Vec<usize> {
    let mut visited = Vec::new();
    let mut waiting: Vec<usize> = roots.iter().rev().copied().collect();
    while let Some(set) = waiting.pop() {
        if !visited.contains(&set) {
            visited.push(set);
            waiting.extend(sets[set].bases.iter().rev());
        }
    }
    let mut order = Vec::new();
    while let Some(position) =
        visited.iter().position(|set| !visited.iter().any(|above| sets[*above].bases.contains(set)))
    {
        order.push(visited.remove(position));
    }
    order
}

impl Stack<'_> {
    fn get(&self, dir: DirId, name: &[u8]) -> Option<&Record> {
        let key = (dir, name.to_vec());
        let found = self.layers.iter().find_map(|layer| layer.get(&key));
        found.filter(|record| !matches!(record, Record::Tombstone { .. }))
    }

    fn next_generation(&self, dir: DirId, name: &[u8]) -> u64 {
        let key = (dir, name.to_vec());
        let records = self.layers.iter().filter_map(|layer| layer.get(&key));
        records.map(Record::next_generation).max().unwrap_or(0)
    }

    fn list(&self, dir: DirId) -> Vec<(Vec<u8>, Record)> {
        let first = (dir, Vec::new());
        let names: BTreeSet<&[u8]> =
            self.layers.iter().flat_map(|layer| layer.range(&first..)).take_while_in(dir).collect();
        let live = names
            .into_iter()
            .filter_map(|name| self.get(dir, name).map(|record| (name.to_vec(), record.clone())));
        live.collect()
    }

    /// Returns everything by path, and every directory's path; `None` if a directory is at two
    /// places.
    fn paths(&self) -> Option<(Paths, BTreeMap<Vec<u8>, DirId>)> {
        let mut paths = Paths::new();
        let mut dirs = BTreeMap::from([(Vec::new(), DirId::ROOT)]);
        let mut seen = BTreeSet::from([DirId::ROOT]);
        let mut waiting = vec![(Vec::new(), DirId::ROOT)];
        while let Some((path, dir)) = waiting.pop() {
            for (name, record) in self.list(dir) {
                let below = [&path, &b"/"[..], &name].concat();
                match record {
                    Record::Directory { id, .. } => {
                        if !seen.insert(id) {
                            return None;
                        }
                        dirs.insert(below.clone(), id);
                        paths.insert(below.clone(), None);
                        waiting.push((below, id));
                    }
                    Record::File { content, .. } => {
                        paths.insert(below, Some(content));
                    }
                    Record::Tombstone { .. } => unreachable!("not listed"),
                }
            }
        }
        Some((paths, dirs))
    }
}

/// Selects the names of one directory from records of many.
trait TakeWhileIn<'a> {
    fn take_while_in(self, dir: DirId) -> impl Iterator<Item = &'a [u8]>;
}

impl<'a, I: Iterator<Item = (&'a (DirId, Vec<u8>), &'a Record)>> TakeWhileIn<'a> for I {
    fn take_while_in(self, dir: DirId) -> impl Iterator<Item = &'a [u8]> {
        self.filter(move |((at, _), _)| *at == dir).map(|((_, name), _)| name.as_slice())
    }
}

/// Returns everything in `namespace` by path.
fn found_paths(namespace: &Namespace) -> Paths {
    let tree = subject::tree(namespace).expect("a tree");
    let below = tree.into_iter().filter(|(path, _)| !path.is_empty());
    below
        .map(|(path, leaf)| {
            let is_file = leaf.attributes.kind == FileKind::File;
            ([b"/", path.as_slice()].concat(), is_file.then_some(leaf.bytes))
        })
        .collect()
}

struct Run {
    random: Random,
    repository: Repository,
    sets: Vec<Set>,
}

impl Run {
    fn stack<'a>(&'a self, own: Option<&'a Layer>, roots: &[usize]) -> Stack<'a> {
        let below =
            topological_order(&self.sets, roots).into_iter().map(|set| &self.sets[set].layer);
        Stack { layers: own.into_iter().chain(below).collect() }
    }

    /// Returns up to `most` earlier sets, in a random order of priority.
    fn choose(&mut self, most: u64) -> Vec<usize> {
        let mut chosen = Vec::new();
        if !self.sets.is_empty() {
            for _ in 0..self.random.below(most + 1) {
                let set = self.random.below(self.sets.len() as u64) as usize;
                if !chosen.contains(&set) {
                    chosen.push(set);
                }
            }
        }
        chosen
    }

    fn ids(&self, sets: &[usize]) -> Vec<SetId> {
        sets.iter().map(|set| self.sets[*set].id).collect()
    }

    fn same(&self, namespace: &Namespace, expected: &Paths, what: &str) {
        let found = found_paths(namespace);
        let path = expected
            .keys()
            .chain(found.keys())
            .find(|path| found.get(*path) != expected.get(*path));
        if let Some(path) = path {
            let bases: Vec<_> = self.sets.iter().map(|set| &set.bases).collect();
            panic!(
                "{what}, of bases {bases:?}: {} is {:?}, expected {:?}",
                path.escape_ascii(),
                found.get(path),
                expected.get(path)
            );
        }
    }

    fn compare(&mut self, roots: &[usize]) {
        let ids = self.ids(roots);
        let namespace = self.repository.open(&ids, Identity::root()).expect("open");
        let expected = self.stack(None, roots).paths();
        let squashes = self.random.one_in(4);
        let Some((expected, _)) = expected else { return };
        self.same(&namespace, &expected, &format!("stack of {roots:?}"));
        if squashes {
            let options = SquashOptions::default();
            let (squashed, _) = self.repository.squash(&ids, &options).expect("squash");
            let namespace = self.repository.open(&[squashed], Identity::root()).expect("open");
            self.same(&namespace, &expected, &format!("squash of {roots:?}"));
            self.repository.abandon(squashed).expect("abandon");
        }
    }

    /// Makes a set of random changes above others.
    fn add_set(&mut self, steps: usize) {
        let bases = self.choose(3);
        if self.stack(None, &bases).paths().is_none() {
            return;
        }
        let tree = tree_options(&mut self.random);
        let options =
            SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() };
        let session = self.repository.begin(&self.ids(&bases), options).expect("begin");
        let mut layer = Layer::new();
        let mut touched = BTreeSet::new();
        for step in 0..steps {
            touched.extend(self.change(&session, &mut layer, &bases, step));
            if self.random.one_in(15) {
                session.flush().expect("flush");
                self.write_times(&mut layer, &bases, &mut touched);
            }
        }
        let (expected, _) = self.stack(Some(&layer), &bases).paths().expect("one place each");
        self.same(session.namespace(), &expected, &format!("session above {bases:?}"));
        self.write_times(&mut layer, &bases, &mut touched);
        let number = self.sets.len();
        if self.random.one_in(4) {
            session.compact().expect("compact");
        }
        let id = session.publish(&format!("set-{number}")).expect("publish");
        if self.random.one_in(4) {
            self.repository.compact_set(id, 1).expect("compact");
        }
        self.sets.push(Set { id, bases, layer });
        self.compare(&[number]);
    }

    /// Puts the records of touched directories into `layer`, as a flush does.
    fn write_times(&self, layer: &mut Layer, bases: &[usize], touched: &mut BTreeSet<DirId>) {
        let stack = self.stack(Some(layer), bases);
        let (_, dirs) = stack.paths().expect("one place each");
        let mut records = Vec::new();
        for (path, id) in dirs.iter().filter(|(path, id)| touched.contains(id) && !path.is_empty())
        {
            let slash = path.iter().rposition(|&byte| byte == b'/').expect("paths start with one");
            let (parent, name) = (dirs[&path[..slash]], path[slash + 1..].to_vec());
            let record = stack.get(parent, &name).expect("it has this path").clone();
            assert!(matches!(record, Record::Directory { id: at, .. } if at == *id));
            records.push(((parent, name), record));
        }
        layer.extend(records);
        touched.clear();
    }

    /// Makes one random change; returns the directories whose entries it changed.
    fn change(
        &mut self,
        session: &Session,
        layer: &mut Layer,
        bases: &[usize],
        step: usize,
    ) -> Vec<DirId> {
        let mut random = self.random.clone();
        let stack = self.stack(Some(layer), bases);
        let (_, dirs) = stack.paths().expect("one place each");
        let dirs: Vec<(Vec<u8>, DirId)> = dirs.into_iter().collect();
        let spot = |random: &mut Random| {
            let (path, id) = dirs[random.below(dirs.len() as u64) as usize].clone();
            let name = pick(random, NAMES);
            let open = session.namespace().dir([&path, &b"/"[..]].concat()).expect("a directory");
            let generation = stack.next_generation(id, name);
            Spot { path, id, name, open, generation, record: stack.get(id, name).cloned() }
        };
        let here = spot(&mut random);
        let put = match (&here.record, random.below(10)) {
            (None, action) => {
                let content = (action >= 5).then(|| format!("{step} of {}", self.sets.len()));
                vec![make(session, &here, content)]
            }
            (Some(record), 0..3) => vec![remove(session, &stack, &here, record)],
            (Some(record), _) => rename(session, &stack, &here, record, &spot(&mut random)),
        };
        self.random = random;
        let touched = put.iter().map(|((dir, _), _)| *dir).collect();
        layer.extend(put);
        touched
    }
}

/// A name in a directory, with its record.
struct Spot {
    path: Vec<u8>,
    id: DirId,
    name: &'static [u8],
    open: Dir,
    /// Generation of the next directory at the name.
    generation: u64,
    record: Option<Record>,
}

impl Spot {
    fn with(&self, record: Record) -> ((DirId, Vec<u8>), Record) {
        ((self.id, self.name.to_vec()), record)
    }

    fn tombstone(&self) -> ((DirId, Vec<u8>), Record) {
        self.with(Record::Tombstone { generation: self.generation })
    }
}

/// Makes a file with `content`, or a directory.
fn make(session: &Session, at: &Spot, content: Option<String>) -> ((DirId, Vec<u8>), Record) {
    let generation = at.generation;
    let Some(content) = content else {
        let id = DirId::child(at.id, generation, at.name);
        let made = session.mkdir(&at.open, at.name, 0o755).expect("mkdir");
        assert_eq!(made.id(), id, "the identity of a directory is predictable");
        return at.with(Record::Directory { id, generation });
    };
    let mut rest = content.as_bytes();
    let mut fill = |buffer: &mut [u8]| {
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        Ok(count)
    };
    session.create_with(&at.open, at.name, 0o644, &mut fill).expect("create");
    at.with(Record::File { content: content.into_bytes(), generation })
}

fn is_empty(stack: &Stack, record: &Record) -> bool {
    match record {
        Record::Directory { id, .. } => stack.list(*id).is_empty(),
        _ => true,
    }
}

fn remove(
    session: &Session,
    stack: &Stack,
    at: &Spot,
    record: &Record,
) -> ((DirId, Vec<u8>), Record) {
    match record {
        Record::File { .. } => drop(session.unlink(&at.open, at.name).expect("unlink")),
        record if is_empty(stack, record) => {
            drop(session.rmdir(&at.open, at.name).expect("rmdir"));
        }
        _ => session.remove_tree(&at.open, at.name).expect("remove tree"),
    }
    at.tombstone()
}

/// Renames `from` to `to`, if possible.
fn rename(
    session: &Session,
    stack: &Stack,
    from: &Spot,
    record: &Record,
    to: &Spot,
) -> Vec<((DirId, Vec<u8>), Record)> {
    let from_path = [&from.path, &b"/"[..], from.name].concat();
    let below = [&from_path, &b"/"[..]].concat();
    let into_itself = to.path == from_path || to.path.starts_with(&below);
    let same = from.id == to.id && from.name == to.name;
    let fits = match (record, &to.record) {
        (_, None) => true,
        (Record::Directory { .. }, Some(other @ Record::Directory { .. })) => {
            is_empty(stack, other)
        }
        (Record::File { .. }, Some(Record::File { .. })) => true,
        _ => false,
    };
    if into_itself || same || !fits {
        return Vec::new();
    }
    let (source, target) = ((&from.open, from.name), (&to.open, to.name));
    session.rename(source, target, RenameFlags::Replace).expect("rename");
    let mut arrived = record.clone();
    match &mut arrived {
        Record::Directory { generation, .. }
        | Record::File { generation, .. }
        | Record::Tombstone { generation } => *generation = to.generation,
    }
    vec![from.tombstone(), to.with(arrived)]
}

fn run(seed: u64, count: usize, steps: usize) {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let mut run = Run { random: Random::from_seed(seed), repository, sets: Vec::new() };
    for _ in 0..count {
        run.add_set(steps);
        let roots = run.choose(4);
        run.compare(&roots);
    }
    check_sound(&run.repository);
}

#[test]
fn random_stacks_match_a_merge_of_maps() {
    campaign::quick(0..60, |seed| run(seed, 8, 25));
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_random_stacks_match_a_merge_of_maps() {
    campaign::soak(|seed| run(seed, 25, 60));
}

fn begin(repository: &Repository, bases: &[SetId]) -> Session {
    let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
    repository.begin(bases, options).expect("begin")
}

/// Symptom: in a stack of two sets that build on a third, changes that the second had made to the
/// third did not show: files that it had removed were back.
/// Cause: a set came where the search first reached it, before other sets that build on it.
/// Fix: sets come in topological order (`load_stack`).
#[test]
fn in_a_diamond_changes_come_before_what_they_change() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = begin(&repository, &[]);
    session.create(session.root(), b"old", 0o644).expect("create");
    let base = session.publish("base").expect("publish");
    let session = begin(&repository, &[base]);
    session.create(session.root(), b"left", 0o644).expect("create");
    let left = session.publish("left").expect("publish");
    let session = begin(&repository, &[base]);
    session.unlink(session.root(), b"old").expect("unlink");
    let right = session.publish("right").expect("publish");
    let merged = repository.open(&[left, right], Identity::root()).expect("open");
    let names = found_paths(&merged).into_keys().collect::<Vec<_>>();
    assert_eq!(names, [b"/left".to_vec()]);
}

/// A set's order of its bases stays when another set names one of them again.
#[test]
fn a_base_named_again_keeps_its_place() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let publish = |name: &str, bases: &[SetId]| {
        let session = begin(&repository, bases);
        if bases.is_empty() {
            session.symlink(session.root(), b"who", name.as_bytes()).expect("symlink");
        }
        session.publish(name).expect("publish")
    };
    let (a, b) = (publish("a", &[]), publish("b", &[]));
    let c = publish("c", &[a, b]);
    let d = publish("d", &[c, a]);
    for sets in [&[c][..], &[d], &[c, a], &[c, b]] {
        let namespace = repository.open(sets, Identity::root()).expect("open");
        assert_eq!(namespace.read_link("/who").expect("a link"), b"a");
    }
}

/// Symptom: a file all of whose names one set had removed, and to which another had given one more,
/// was `Corrupt` in a stack of both.
/// Cause: the removal of the last name replaced the inode by a tombstone.
/// Fix: an inode without names in its own set stays, with no links, until a merge that has nothing
/// below it drops it.
#[test]
fn a_name_given_here_survives_the_removal_of_all_others_there() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = begin(&repository, &[]);
    let root = session.root();
    session.create(root, b"one", 0o644).expect("create");
    session.link(root, b"one", root, b"two").expect("link");
    let base = session.publish("base").expect("publish");
    let session = begin(&repository, &[base]);
    session.unlink(session.root(), b"one").expect("unlink");
    session.unlink(session.root(), b"two").expect("unlink");
    let without = session.publish("without").expect("publish");
    let session = begin(&repository, &[base]);
    session.link(session.root(), b"one", session.root(), b"three").expect("link");
    let with = session.publish("with").expect("publish");
    let merged = repository.open(&[without, with], Identity::root()).expect("open");
    assert_eq!(found_paths(&merged).into_keys().collect::<Vec<_>>(), [b"/three".to_vec()]);
    let options = SquashOptions::default();
    let (squashed, _) = repository.squash(&[without, with], &options).expect("squash");
    let squashed = repository.open(&[squashed], Identity::root()).expect("open");
    squashed.stat("/three", FollowLinks::No).expect("stat");
    check_sound(&repository);
}

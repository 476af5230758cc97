// SPDX-License-Identifier: Apache-2.0
//! Lineages: sets that change the same files independently, in random graphs, compared with records
//! that include their content.
//!
//! The reference keeps each set's record of each name: removed, a file with this content, or a
//! link; and the content of each file with several names. The first set of a stack with a record of
//! a name decides, and likewise for a file with several names. Content is therefore always that of
//! the set that wrote the record, regardless of other sets' changes of the file. Directories are
//! left out: `stack.rs` tests them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use esker_base::random::Random;
use esker_base::store::MemoryStore;
use esker_fs::inode::Inode;
use esker_fs::job::JobId;
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::SetId;
use esker_table::tree::Compaction;

use crate::campaign;
use crate::model::{check_sound, tree_options};
use crate::random_operation::pick;

const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f"];
/// Longer than the inline limit of records.
const CONTENT_BYTES: u64 = 3_000;

/// A set's record of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Record {
    Tombstone,
    File(Vec<u8>),
    Link(u128),
}

/// Records of a set.
#[derive(Clone, Debug, Default)]
struct Layer {
    names: BTreeMap<&'static str, Record>,
    /// Content of files with several names.
    links: BTreeMap<u128, Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Set {
    id: SetId,
    bases: Vec<usize>,
    layer: Layer,
}

/// Layers in order of precedence.
struct View<'a>(Vec<&'a Layer>);

impl View<'_> {
    fn record(&self, name: &str) -> Option<&Record> {
        let found = self.0.iter().find_map(|layer| layer.names.get(name));
        found.filter(|record| **record != Record::Tombstone)
    }

    fn content(&self, record: &Record) -> Vec<u8> {
        match record {
            Record::Tombstone => Vec::new(),
            Record::File(content) => content.clone(),
            Record::Link(file) => {
                let found = self.0.iter().find_map(|layer| layer.links.get(file));
                found.expect("a link has its file").clone()
            }
        }
    }

    fn contents(&self) -> BTreeMap<&'static str, Vec<u8>> {
        let shown = NAMES.iter().filter_map(|name| Some((*name, self.record(name)?)));
        shown.map(|(name, record)| (name, self.content(record))).collect()
    }

    /// Merges all of it into one layer.
    fn flat(&self) -> Layer {
        let mut flat = Layer::default();
        for name in NAMES {
            if let Some(record) = self.record(name) {
                if let Record::Link(file) = record {
                    flat.links.insert(*file, self.content(record));
                }
                flat.names.insert(name, record.clone());
            }
        }
        flat
    }
}

fn stat(namespace: &Namespace, name: &str) -> Inode {
    namespace.stat(format!("/{name}"), FollowLinks::No).expect("stat")
}

/// Returns the names and contents in `namespace`.
fn found(namespace: &Namespace) -> BTreeMap<&'static str, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in namespace.read_dir(namespace.root(), &Default::default(), 100).expect("list") {
        let name = NAMES.iter().find(|name| name.as_bytes() == entry.name).expect("a known name");
        let inode = stat(namespace, name);
        assert_eq!(entry.inode, inode, "{name}: a listing says what a look-up says");
        assert!(inode.nlink > 0, "{name} has a name");
        let mut content = Vec::new();
        let take = &mut |bytes: &[u8]| {
            content.extend_from_slice(bytes);
            Ok(())
        };
        namespace.read_all(&inode, take).expect("read");
        assert_eq!(content.len() as u64, inode.size);
        found.insert(*name, content);
    }
    found
}

struct Run {
    random: Random,
    repository: Repository,
    sets: Vec<Set>,
    published: usize,
}

impl Run {
    fn view<'a>(&'a self, own: Option<&'a Layer>, roots: &[usize]) -> View<'a> {
        let mut visited = Vec::new();
        let mut waiting: Vec<usize> = roots.iter().rev().copied().collect();
        while let Some(set) = waiting.pop() {
            if !visited.contains(&set) {
                visited.push(set);
                waiting.extend(self.sets[set].bases.iter().rev());
            }
        }
        let mut layers: Vec<&Layer> = own.into_iter().collect();
        let has_above = |visited: &[usize], set: &usize| {
            visited.iter().any(|above| self.sets[*above].bases.contains(set))
        };
        while let Some(next) = visited.iter().position(|set| !has_above(&visited, set)) {
            layers.push(&self.sets[visited.remove(next)].layer);
        }
        View(layers)
    }

    fn choose(&mut self, most: u64) -> Vec<usize> {
        let mut chosen = Vec::new();
        for _ in 0..self.random.below(most) + 1 {
            // Prefers recent sets, so that graphs get deep.
            let count = self.sets.len() as u64;
            let low = if self.random.one_in(2) { count.saturating_sub(3) } else { 0 };
            if count > 0 {
                let set = (low + self.random.below(count - low)) as usize;
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

    fn options(&mut self, has_bases: bool) -> SessionOptions {
        let mut tree = tree_options(&mut self.random);
        if !has_bases {
            // Without bases, merges drop tombstones that would hide names of sets stacked below
            // later.
            tree.compaction = Compaction::Deferred;
        }
        SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() }
    }

    fn same(&self, namespace: &Namespace, view: &View, what: &str) {
        let (found, expected) = (found(namespace), view.contents());
        let bases: Vec<_> = self.sets.iter().map(|set| &set.bases).collect();
        let names = |of: &BTreeMap<&'static str, Vec<u8>>| of.keys().copied().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{what}, of bases {bases:?}");
        for (name, content) in expected {
            assert!(found[name] == content, "{name} in {what}, of bases {bases:?}");
        }
        for (one, other) in found.keys().flat_map(|one| found.keys().map(move |other| (one, other)))
        {
            let records = (view.record(one), view.record(other));
            let is_same = matches!(records.0, Some(Record::Link(_))) && records.0 == records.1;
            let ids = (stat(namespace, one).id, stat(namespace, other).id);
            let is_one = one == other || is_same;
            assert_eq!(ids.0 == ids.1, is_one, "{one} and {other} in {what}, of bases {bases:?}");
        }
    }

    /// Makes one random change of `session`, whose records so far are `layer`.
    fn change(&mut self, session: &Session, layer: &mut Layer, bases: &[usize]) {
        let (name, other) = (pick(&mut self.random, NAMES), pick(&mut self.random, NAMES));
        let action = self.random.below(12);
        let (at, length) = (self.random.below(CONTENT_BYTES), 1 + self.random.below(500));
        let byte = 1 + self.random.below(250) as u8;
        let mut layer_after = layer.clone();
        let view = self.view(Some(layer), bases);
        let (record, target) = (view.record(name).cloned(), view.record(other).cloned());
        let after = &mut layer_after;
        let root = session.root();
        let Some(record) = record else {
            let content = vec![byte; (at + length) as usize];
            create(session, name, &content);
            after.names.insert(name, Record::File(content));
            *layer = layer_after;
            return;
        };
        let mut content = view.content(&record);
        match action {
            0..4 => {
                let bytes = vec![byte; if action == 0 { 0 } else { length as usize }];
                write(session, name, at, &bytes, &mut content);
                put(after, name, &record, content);
            }
            4 => {
                let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
                session.setattr(root, name.as_bytes(), &changes).expect("chmod");
                put(after, name, &record, content);
            }
            5..8 => {
                let flags = if action == 7 { RenameFlags::Exchange } else { RenameFlags::Replace };
                if name == other || target.is_none() && flags == RenameFlags::Exchange {
                    return;
                }
                let moved = (root, name.as_bytes());
                let renamed = session.rename(moved, (root, other.as_bytes()), flags);
                if renamed.expect("rename").is_none() {
                    assert!(matches!(record, Record::Link(_)) && target == Some(record));
                    return;
                }
                let left = match (flags, &target) {
                    (RenameFlags::Exchange, Some(target)) => target.clone(),
                    _ => Record::Tombstone,
                };
                if let (Some(Record::Link(file)), Record::Tombstone) = (&target, &left) {
                    after.links.insert(*file, view.content(&Record::Link(*file)));
                }
                after.names.insert(name, left);
                after.names.insert(other, record);
            }
            8..10 => {
                if target.is_some() {
                    return;
                }
                let id = stat(session.namespace(), name).id;
                session.link(root, name.as_bytes(), root, other.as_bytes()).expect("link");
                after.names.insert(name, Record::Link(id));
                after.names.insert(other, Record::Link(id));
                after.links.insert(id, content);
            }
            _ => {
                session.unlink(root, name.as_bytes()).expect("unlink");
                if let Record::Link(file) = record {
                    after.links.insert(file, content);
                }
                after.names.insert(name, Record::Tombstone);
            }
        }
        *layer = layer_after;
    }

    /// Makes random changes of `session`; returns its records.
    fn changes(&mut self, mut session: Session, bases: &[usize], steps: u64) -> (Session, Layer) {
        let mut layer = Layer::default();
        for _ in 0..steps {
            self.change(&session, &mut layer, bases);
            match self.random.below(25) {
                0 => session.flush().expect("flush"),
                1 if !bases.is_empty() => session.compact().expect("compact"),
                2 => {
                    session.sync().expect("sync");
                    let set = session.set();
                    drop(session);
                    let options = self.options(!bases.is_empty());
                    session = self.repository.resume(set, options).expect("resume");
                }
                _ => {}
            }
        }
        self.same(
            session.namespace(),
            &self.view(Some(&layer), bases),
            &format!("session above {bases:?}"),
        );
        (session, layer)
    }

    fn name(&mut self) -> String {
        self.published += 1;
        format!("set-{}", self.published)
    }

    fn add_set(&mut self) {
        let bases = self.choose(3);
        let options = self.options(!bases.is_empty());
        let session = self.repository.begin(&self.ids(&bases), options).expect("begin");
        let (session, layer) = self.changes(session, &bases, 12);
        let id = session.publish(&self.name()).expect("publish");
        self.sets.push(Set { id, bases, layer });
        let last = self.sets.len() - 1;
        let namespace = self.repository.open(&[id], Identity::root()).expect("open");
        self.same(&namespace, &self.view(None, &[last]), &format!("set {last}"));
    }

    /// Squashes `roots` into a set that is then used like any other.
    fn add_squash(&mut self, roots: &[usize]) {
        let options = SquashOptions { threads: 1, ..SquashOptions::default() };
        let (id, _) = self.repository.squash(&self.ids(roots), &options).expect("squash");
        let namespace = self.repository.open(&[id], Identity::root()).expect("open");
        self.same(&namespace, &self.view(None, roots), &format!("squash of {roots:?}"));
        let layer = self.view(None, roots).flat();
        let mut names: BTreeMap<u128, u32> = BTreeMap::new();
        for name in layer.names.keys() {
            *names.entry(stat(&namespace, name).id).or_default() += 1;
        }
        for name in layer.names.keys() {
            let inode = stat(&namespace, name);
            assert_eq!(inode.nlink, names[&inode.id], "links of {name} in a squash of {roots:?}");
        }
        let name = self.name();
        self.repository.publish(id, &name).expect("publish");
        self.sets.push(Set { id, bases: Vec::new(), layer });
    }

    /// Joins two parts of a job above `bases`: every name shows the version of one of them or of
    /// the bases, and removing one leaves the others.
    fn join(&mut self, bases: &[usize]) {
        let mut views = vec![self.view(None, bases).contents()];
        let (mut parts, mut said) = (Vec::new(), Vec::new());
        // One job after another.
        let job = JobId(self.sets.len() as u128);
        for rank in 0..2 {
            let options = self.options(!bases.is_empty());
            let ids = self.ids(bases);
            let part = self.repository.begin_part(job, rank, &ids, options).expect("begin");
            let (part, layer) = self.changes(part, bases, 6);
            views.push(self.view(Some(&layer), bases).contents());
            said.push(layer);
            parts.push(part.complete().expect("complete"));
        }
        let name = self.name();
        let report = self.repository.publish_job(&parts, &name).expect("join");
        let namespace = self.repository.open(&[report.set], Identity::root()).expect("open");
        let shown = found(&namespace);
        let links: BTreeSet<u128> =
            said.iter().flat_map(|layer| layer.links.keys()).copied().collect();
        for (name, content) in &shown {
            // Ranges that both wrote of one file are merged, also under its other names.
            let is_merged = links.contains(&stat(&namespace, name).id)
                || said.iter().all(|layer| layer.names.contains_key(name));
            let fits = views.iter().any(|view| view.get(name) == Some(content));
            assert!(fits || is_merged, "{name} of a job above {bases:?}: {report:?}");
        }
        let options = self.options(true);
        let session = self.repository.begin(&[report.set], options).expect("begin");
        let mut left = shown;
        while let Some((name, _)) = left.pop_first() {
            session.unlink(session.root(), name.as_bytes()).expect("unlink");
            assert!(
                found(session.namespace()) == left,
                "after {name} was removed above a job: {report:?}"
            );
        }
    }
}

fn run(seed: u64, count: usize) {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let mut run =
        Run { random: Random::from_seed(seed), repository, sets: Vec::new(), published: 0 };
    for _ in 0..count {
        run.add_set();
        let roots = run.choose(3);
        let namespace = run.repository.open(&run.ids(&roots), Identity::root()).expect("open");
        run.same(&namespace, &run.view(None, &roots), &format!("stack of {roots:?}"));
        if run.random.one_in(3) {
            run.add_squash(&roots);
        }
        if run.random.one_in(4) {
            run.join(&roots);
        }
    }
    check_sound(&run.repository);
}

#[test]
fn random_lineages_match_records_with_content() {
    campaign::quick(0..60, |seed| run(seed, 8));
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_random_lineages_match_records_with_content() {
    campaign::soak(|seed| run(seed, 20));
}

/// Replaces the content of `record`, which is shown at `name`.
fn put(layer: &mut Layer, name: &'static str, record: &Record, content: Vec<u8>) {
    match record {
        Record::Link(file) => drop(layer.links.insert(*file, content)),
        _ => drop(layer.names.insert(name, Record::File(content))),
    }
}

fn create(session: &Session, name: &str, content: &[u8]) {
    let file = session.create_file(session.root(), name.as_bytes(), 0o644).expect("create");
    session.file(&file).write(0, content).expect("write");
    session.close_file(file).expect("close");
}

/// Writes `bytes` at `at` of a file with `content`, or truncates it there if `bytes` is empty.
fn write(session: &Session, name: &str, at: u64, bytes: &[u8], content: &mut Vec<u8>) {
    let (start, end) = (at as usize, at as usize + bytes.len());
    let file = session.open_file(session.root(), name.as_bytes()).expect("open");
    if bytes.is_empty() {
        session.file(&file).truncate(at).expect("truncate");
        content.resize(end, 0);
    } else {
        session.file(&file).write(at, bytes).expect("write");
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(bytes);
    }
    session.close_file(file).expect("close");
}

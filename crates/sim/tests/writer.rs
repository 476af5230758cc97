// SPDX-License-Identifier: Apache-2.0
//! Writer: an actor with a session, which it loses, resumes, publishes, or takes over from another.

use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::{Error, Kind, Random, Result};
use esker_fs::file::OpenFile;
use esker_fs::inode::FileKind;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_sim::{ActorId, ActorProcess};
use esker_table::manifest::SetId;
use esker_table::tree::{Compaction, Durability, TreeOptions};

use crate::checks::{World, options, tree_of};
use crate::history::{Step, StepKind};
use crate::in_place::{FileInPlace, KeptFile};
use crate::job::run_job;
use crate::operation::{Answer, Content, Operation, Outcome, TargetPath};
use crate::random_operation::{Mix, pick};
use crate::reference::Reference;
use crate::subject;
use crate::truth::{Lineage, adopt_content, differs, is_change};

/// One in this many files is larger than 8 MiB.
const LARGE_ONE_IN: u64 = 400;
/// Size of a file that has its own data log.
const LARGE_BYTES: usize = (8 << 20) + 4_321;
/// Recoveries that may fail in a row before the run fails. Each makes a request, and all faults of
/// a history together make fewer of them fail.
const TRIES_MAX: usize = 200;
/// Takeovers by others in a row after which a writer gives its session up: writers that resume one
/// without a pause fence each other forever.
const FENCED_MAX: usize = 10;

/// The writer.
pub struct Writer {
    pub(crate) world: Arc<World>,
    actor: ActorId,
    pub(crate) process: Arc<ActorProcess>,
    repository: Repository,
    pub(crate) mix: Mix,
    pub(crate) work: Option<Work>,
    /// Files that were written in place, and that processes may still write.
    pub(crate) kept_files: Vec<KeptFile>,
}

/// A session and its expected content.
pub(crate) struct Work {
    pub(crate) session: Arc<Session>,
    pub(crate) durability: Durability,
    /// Number of states in the set's lineage, as far as this session knows.
    pub(crate) states: usize,
    pub(crate) reference: Reference,
    /// Open files without a name, with their contents.
    pub(crate) removed: Vec<(Arc<OpenFile>, Vec<u8>)>,
    /// The file that is being written in place.
    pub(crate) in_place: Option<FileInPlace>,
}

fn tree_options(random: &mut Random) -> TreeOptions {
    let durabilities = [Durability::None, Durability::Async, Durability::Always];
    let compactions = [Compaction::Deferred, Compaction::Tiered, Compaction::Full];
    TreeOptions {
        durability: pick(random, &durabilities),
        compaction: pick(random, &compactions),
        ..TreeOptions::default()
    }
}

/// Returns whether two answers agree, apart from times.
pub(crate) fn agrees(found: &Result<Answer>, expected: &Outcome) -> bool {
    match (found, expected) {
        (Ok(Answer::Attributes(found)), Ok(Answer::Attributes(expected))) => {
            let (mut found, mut expected) = (found.clone(), expected.clone());
            for attributes in [&mut found, &mut expected] {
                (attributes.mtime_ns, attributes.ctime_ns, attributes.atime_ns) = (0, 0, 0);
            }
            found == expected
        }
        (Ok(found), Ok(expected)) => found == expected,
        (Err(found), Err(expected)) => found.kind() == *expected,
        _ => false,
    }
}

impl Writer {
    pub fn new(world: &Arc<World>, actor: ActorId) -> Self {
        let process = world.machine.start_process(actor);
        let repository = world.repository(&process);
        let mix = Mix::new(LARGE_ONE_IN);
        Self {
            world: world.clone(),
            actor,
            process,
            repository,
            mix,
            work: None,
            kept_files: Vec::new(),
        }
    }

    /// Executes `steps`.
    pub fn run(mut self, steps: &[Step]) {
        for step in steps {
            if self.process.is_dead() {
                self.restart(step.seed);
            }
            if self.world.machine.has_failed() {
                return;
            }
            let mut random = Random::from_seed(step.seed);
            self.world.machine.record(|| format!("writer {}: {:?}", self.actor.0, step.kind));
            if self.work.is_none() && step.kind != StepKind::TakeOver {
                self.begin(&mut random);
            }
            self.act(step.kind, &mut random);
            self.write_kept_files(&mut random);
            self.check_removed();
            if random.one_in(4) {
                let with_verify = random.one_in(4);
                self.world.machine.pause(|| self.world.check(with_verify));
            }
        }
    }

    fn act(&mut self, kind: StepKind, random: &mut Random) {
        match kind {
            StepKind::Restart if self.work.is_some() => self.restart(random.next_u64()),
            StepKind::Restart => {}
            StepKind::TakeOver => self.take_over(random),
            StepKind::Publish => self.publish(),
            StepKind::Snapshot => self.snapshot(random),
            StepKind::Operation => self.operate(random),
            StepKind::Patch => self.patch(random),
            StepKind::InPlace => self.write_in_place(random),
            StepKind::WriteLarge => self.write_large(random),
            StepKind::OpenRemoved => self.open_removed(random),
            StepKind::OpenMoved => self.open_moved(random),
            StepKind::Job => run_job(&self.world, &self.process, &self.repository, random),
            StepKind::Sync => self.make_durable(Session::sync),
            StepKind::Flush => {
                self.make_durable(Session::flush);
                self.merge_for_reads(random);
            }
            StepKind::Compact => self.make_durable(Session::compact),
            _ => unreachable!("{kind:?} is a step of a keeper"),
        }
    }

    /// Fails the run unless the history's faults can cause `error`.
    pub(crate) fn check_error(&self, what: &str, error: &Error) {
        let history = &self.world.history;
        let is_lawful = match error.kind() {
            Kind::Unavailable | Kind::Closed | Kind::NoSpace => history.has_errors(),
            // Another writer or a collector came first.
            Kind::Fenced | Kind::Conflict => true,
            Kind::NotFound => history.is_eager(),
            _ => false,
        };
        if !is_lawful && !self.process.is_dead() {
            self.world.fail(format!("writer {}: {what}: {error:?}", self.actor.0));
        }
    }

    fn begin(&mut self, random: &mut Random) {
        let base = {
            let truth = self.world.truth.lock();
            let names: Vec<&String> = truth.names.keys().collect();
            names.get(random.below(names.len() as u64 + 1) as usize).map(|name| (*name).clone())
        };
        let tree = tree_options(random);
        let durability = tree.durability;
        let clock: Arc<ManualClock> = self.world.machine.clock().clone();
        let (mut bases, mut reference) = (Vec::new(), Reference::new(clock));
        if let Some(name) = &base {
            let Ok(named) = self.repository.resolve(name) else { return };
            let truth = self.world.truth.lock();
            // A keeper may have unpublished it meanwhile.
            let Some(shown) = truth.names.get(name).filter(|shown| shown.other.is_none()) else {
                return;
            };
            bases.push(named.set);
            reference = shown.reference.clone();
        }
        match self.repository.begin(&bases, options(tree)) {
            Ok(session) => {
                let lineage = Lineage::new(reference.clone(), self.process.number());
                self.world.truth.lock().lineages.insert(session.set(), lineage);
                self.work = Some(Work::new(session, durability, 1, reference));
            }
            Err(error) => {
                let is_there = |name: String| self.world.truth.lock().is_published(&name);
                if error.kind() != Kind::NotFound || base.is_none_or(is_there) {
                    self.check_error("begin", &error);
                }
            }
        }
    }

    /// Returns whether this process still owns the set of `work`.
    pub(crate) fn owns(&self, work: &Work) -> bool {
        let truth = self.world.truth.lock();
        let lineage = truth.lineages.get(&work.session.set());
        lineage.is_some_and(|lineage| lineage.owner == self.process.number())
    }

    pub(crate) fn with_lineage(&self, set: SetId, change: impl FnOnce(&mut Lineage)) {
        self.world.with_lineage(set, self.process.number(), change);
    }

    /// Records an acknowledgement that the session's whole content survives.
    pub(crate) fn acknowledge(&self, work: &Work) {
        self.world.acknowledge(work.session.set(), self.process.number(), work.states);
    }

    fn operate(&mut self, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let operation = self.mix.next(random, &work.reference);
        self.run_operation(&operation, random);
    }

    /// Executes `operation`, unless that removes the file that is written in place.
    pub(crate) fn run_operation(&mut self, operation: &Operation, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let mut next = work.reference.clone();
        let expected = next.run(operation);
        if !work.keeps_in_place(&next) {
            return;
        }
        self.world.machine.record(|| format!("{operation:?}"));
        self.begin_operation(work, &next, None);
        let found = subject::try_run(&work.session, operation);
        if self.process.is_dead() {
            return;
        }
        if agrees(&found, &expected) {
            if is_change(&work.reference, &next) {
                self.end_operation(next, None);
            } else {
                self.with_lineage(work.session.set(), |lineage| lineage.pending = None);
            }
            return;
        }
        match found {
            Err(error) => {
                self.check_error(&format!("{operation:?}, expected {expected:?}"), &error);
                self.observe(next, None, random);
            }
            found => self.world.fail(format!("{operation:?}: {found:?}, expected {expected:?}")),
        }
    }

    pub(crate) fn begin_operation(&self, work: &Work, next: &Reference, loose: Option<&[u8]>) {
        let pending = work.version(next, loose.map(<[u8]>::to_vec));
        self.with_lineage(work.session.set(), |lineage| lineage.pending = Some(pending));
    }

    /// Records that the operation in progress was acknowledged.
    pub(crate) fn end_operation(&mut self, next: Reference, loose: Option<Vec<u8>>) {
        self.push_state(next, loose);
        if let Some(work) = self.work.as_ref().filter(|work| work.durability == Durability::Always)
        {
            self.acknowledge(work);
        }
    }

    pub(crate) fn push_state(&mut self, next: Reference, loose: Option<Vec<u8>>) {
        let Some(mut work) = self.work.take() else { return };
        work.reference = next;
        work.states += 1;
        work.follow_in_place();
        self.with_lineage(work.session.set(), |lineage| {
            lineage.pending = None;
            lineage.states.push(work.version(&work.reference, loose));
        });
        self.work = Some(work);
    }

    /// Handles a failed operation whose outcome is unknown: reads the tree, or restarts the
    /// process.
    pub(crate) fn observe(
        &mut self,
        mut next: Reference,
        loose: Option<Vec<u8>>,
        random: &mut Random,
    ) {
        if random.one_in(2) {
            return self.restart(random.next_u64());
        }
        let Some(work) = &self.work else { return };
        // Writes to a file that could not be closed are not an operation yet, but they are visible.
        if loose.is_some() && work.session.sync().is_err() {
            return self.restart(random.next_u64());
        }
        let Some(work) = self.work.as_ref().filter(|_| !self.process.is_dead()) else { return };
        let found = self.world.machine.pause(|| subject::tree(work.session.namespace()));
        let Ok(found) = found else { return self.restart(random.next_u64()) };
        if differs(&found, &work.reference).is_none() {
            return;
        }
        if let Some(path) = &loose {
            adopt_content(&mut next, path, &found);
        }
        match differs(&found, &next) {
            None => self.push_state(next, loose),
            Some(reason) => self.world.fail(format!("after a failed operation: {reason}")),
        }
    }

    /// Writes a file that has its own data log; syncs all earlier changes in the middle.
    fn write_large(&mut self, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let content = Content { bytes: LARGE_BYTES, seed: random.next_u64() };
        let name = format!("large{}", work.states).into_bytes();
        let at = TargetPath { dir: b"/".to_vec(), name };
        let operation = Operation::Write { at: at.clone(), mode: 0o644, content };
        let mut next = work.reference.clone();
        if next.run(&operation).is_err() {
            return;
        }
        self.begin_operation(work, &next, None);
        let mut bytes = subject::source(content);
        let (mut given, mut is_synced) = (0, false);
        let mut source = |buffer: &mut [u8]| {
            given += buffer.len();
            if given > LARGE_BYTES / 2 && !is_synced {
                work.session.sync()?;
                is_synced = true;
            }
            bytes(buffer)
        };
        let root = work.session.root();
        let written = work.session.create_with(root, &at.name, 0o644, &mut source);
        if self.process.is_dead() {
            return;
        }
        match written {
            Ok(_) => self.end_operation(next, None),
            Err(error) => {
                self.check_error("write a large file", &error);
                self.observe(next, None, random);
            }
        }
    }

    fn make_durable(&mut self, act: impl FnOnce(&Session) -> Result<()>) {
        let Some(work) = &self.work else { return };
        let done = act(&work.session);
        if self.process.is_dead() {
            return;
        }
        match done {
            Ok(()) => self.acknowledge(work),
            Err(error) => {
                self.check_error("sync, flush or compact", &error);
                if !self.owns(work) {
                    self.work = None;
                }
            }
        }
    }

    /// Merges runs as a thread does after many reads.
    fn merge_for_reads(&mut self, random: &mut Random) {
        let Some(work) = self.work.as_ref().filter(|_| !self.process.is_dead()) else { return };
        let tree = work.session.namespace().layers().writer().expect("a session writes a tree");
        tree.add_read_cost(1 << random.below(24));
        let merged = tree.merge_paid_runs();
        if let Err(error) = merged
            && !self.process.is_dead()
        {
            self.check_error("merge for reads", &error);
            if !self.owns(work) {
                self.work = None;
            }
        }
    }

    fn publish(&mut self) {
        let Some(work) = &self.work else { return };
        let set = work.session.set();
        let name = self.world.truth.lock().promise_name(&work.reference);
        self.with_lineage(set, |lineage| lineage.is_publishing = true);
        let done = work.session.publish(&name);
        if self.process.is_dead() {
            return;
        }
        let owns = self.owns(work);
        match done {
            Ok(_) => {
                let mut truth = self.world.truth.lock();
                if owns {
                    truth.lineages.remove(&set);
                }
                truth.confirm_name(&name);
                drop(truth);
                self.work = None;
            }
            Err(error) => {
                self.check_error("publish", &error);
                if owns { self.restart(0) } else { self.work = None }
            }
        }
    }

    /// The process dies, and another continues its set.
    pub(crate) fn restart(&mut self, seed: u64) {
        let mut random = Random::from_seed(seed);
        let set = self.work.take().map(|work| work.session.set());
        loop {
            self.process = self.world.machine.start_process(self.actor);
            self.repository = self.world.repository(&self.process);
            let Some(set) = set else { return };
            self.resume(set, &mut random);
            if !self.process.is_dead() || self.world.machine.has_failed() {
                return;
            }
        }
    }

    fn take_over(&mut self, random: &mut Random) {
        let sets: Vec<SetId> = self.world.truth.lock().lineages.keys().copied().collect();
        if !sets.is_empty() {
            self.work = None;
            self.resume(pick(random, &sets), random);
        }
    }

    fn resume(&mut self, set: SetId, random: &mut Random) {
        let (mut last_error, mut fenced) = (None, 0);
        for _ in 0..TRIES_MAX {
            let tree = tree_options(random);
            let durability = tree.durability;
            let resumed = self.repository.resume(set, options(tree));
            if self.process.is_dead() {
                return;
            }
            match resumed {
                Ok(session) => match self.adopt(session, durability) {
                    Ok(()) => return,
                    // A compaction and a collection without a grace period came between its
                    // reading of a base's manifest and of the tables.
                    Err(error)
                        if error.kind() == Kind::NotFound && self.world.history.is_eager() =>
                    {
                        last_error = Some(error);
                    }
                    Err(error) => {
                        return self.world.fail(format!("read after resume: {error:?}"));
                    }
                },
                Err(error) if error.kind() == Kind::Invalid => return self.finish_publishing(set),
                // The process that finished publishing it may have seen it unpublished and
                // collected.
                Err(_) if !self.world.truth.lock().lineages.contains_key(&set) => return,
                Err(error) => {
                    fenced += usize::from(error.kind() == Kind::Fenced);
                    if fenced > FENCED_MAX {
                        return;
                    }
                    // Another process resumes it, too, and has deleted the logs that it replayed.
                    if error.kind() != Kind::NotFound {
                        self.check_error("resume", &error);
                    }
                    if self.world.machine.has_failed() {
                        return;
                    }
                    last_error = Some(error);
                }
            }
        }
        if self.world.history.is_eager() {
            // A collector without a grace period took it when it had just begun.
            self.world.truth.lock().lineages.remove(&set);
        } else {
            self.world.fail(format!("set {set} cannot be resumed: {last_error:?}"));
        }
    }

    /// Checks that the session just resumed shows a possible state.
    ///
    /// # Errors
    /// If the session cannot be read.
    fn adopt(&mut self, session: Session, durability: Durability) -> Result<()> {
        let manifests = format!("set/{}/manifest/", session.set());
        if self.world.machine.last_writer(&manifests) != Some(self.process.number()) {
            // Another process took the set over before this one had recovered it.
            return Ok(());
        }
        let found = self.world.machine.pause(|| subject::tree(session.namespace()))?;
        let mut truth = self.world.truth.lock();
        let Some(lineage) = truth.lineages.get_mut(&session.set()) else { return Ok(()) };
        if let Err(reason) = lineage.recover(&found, self.process.number()) {
            drop(truth);
            self.world.fail(format!("set {}: {reason}", session.set()));
            return Ok(());
        }
        let (states, reference) = (lineage.states.len(), lineage.last().clone());
        drop(truth);
        self.work = Some(Work::new(session, durability, states, reference));
        Ok(())
    }

    /// Handles a set that cannot be resumed because it is complete, unknown to its publisher.
    fn finish_publishing(&mut self, set: SetId) {
        let lineage = self.world.truth.lock().lineages.get(&set).cloned();
        let Some(lineage) = lineage else { return };
        if !lineage.is_publishing {
            return self.world.fail(format!("set {set} is published, and nobody published it"));
        }
        let found = self.world.machine.pause(|| tree_of(&self.world.observer(), &[set]));
        let reason = match &found {
            Ok(found) => differs(found, lineage.last()),
            Err(error) => Some(format!("{error:?}")),
        };
        if let Some(reason) = reason {
            return self.world.fail(format!("set {set}, which is complete: {reason}"));
        }
        let name = self.world.truth.lock().promise_name(lineage.last());
        let done = self.repository.publish(set, &name);
        if self.process.is_dead() {
            return;
        }
        match done {
            Ok(()) => {
                let mut truth = self.world.truth.lock();
                truth.confirm_name(&name);
                truth.lineages.remove(&set);
            }
            Err(error) => self.check_error("publish what is complete", &error),
        }
    }
}

impl Work {
    fn new(session: Session, durability: Durability, states: usize, reference: Reference) -> Self {
        let session = Arc::new(session);
        Self { session, durability, states, reference, removed: Vec::new(), in_place: None }
    }
}

/// The paths of all files.
pub(crate) fn paths_of_files(reference: &Reference) -> Vec<Vec<u8>> {
    let is_file = |(_, kind): &(Vec<u8>, FileKind)| *kind == FileKind::File;
    reference.paths().into_iter().filter(is_file).map(|(path, _)| path).collect()
}

/// Pieces to write over `before`, and the content after them.
pub(crate) fn patches(before: &[u8], random: &mut Random) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
    let mut bytes = before.to_vec();
    let mut pieces = Vec::new();
    for _ in 0..1 + random.below(4) {
        let offset = random.below(bytes.len() as u64 + 1_000) as usize;
        let length = 1 + random.below(40_000) as usize;
        let piece = Content { bytes: length, seed: random.next_u64() }.make();
        bytes.resize(bytes.len().max(offset + length), 0);
        bytes[offset..offset + length].copy_from_slice(&piece);
        pieces.push((offset as u64, piece));
    }
    (bytes, pieces)
}

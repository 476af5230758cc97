// SPDX-License-Identifier: Apache-2.0
//! Second thread: actions of another thread of a session while a snapshot of it is made.
//!
//! It acts before a request for a marker or a name, at which the snapshot holds no lock that it
//! needs. If it changes something, the first reader of the snapshot decides whether the change is
//! in it.

use std::sync::Arc;

use esker_base::{Random, Result};
use esker_fs::session::Session;
use esker_table::tree::Durability;
use parking_lot::Mutex;

use crate::operation::{Answer, Operation};
use crate::random_operation::pick;
use crate::reference::Reference;
use crate::subject;
use crate::truth::is_change;
use crate::writer::{Work, Writer, agrees};

/// The request before which it acts is drawn from this many.
const REQUESTS: u64 = 8;

/// The result of an operation, and whether it is the expected one.
type CheckedAnswer = (Result<Answer>, bool);

/// An operation concurrent with a snapshot.
struct BesideOperation {
    operation: Operation,
    /// The session's content after it.
    next: Reference,
    is_change: bool,
    /// `None` until it is done.
    answer: Arc<Mutex<Option<CheckedAnswer>>>,
}

impl Writer {
    /// Takes a snapshot of the session.
    pub(crate) fn snapshot(&mut self, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let operation = self.mix.next(random, &work.reference);
        let mut beside = None;
        let mut next = work.reference.clone();
        drop(next.run(&operation));
        match random.below(8) {
            0..3 if work.keeps_in_place(&next) => {
                beside = Some(self.operate_beside(work, operation, random))
            }
            3..5 => self.make_durable_beside(work, random),
            _ => {}
        }
        let name = self.world.truth.lock().promise_name(&work.reference);
        if let Some(beside) = beside.as_ref().filter(|beside| beside.is_change)
            && let Some(named) = self.world.truth.lock().names.get_mut(&name)
        {
            named.other = Some(beside.next.clone());
        }
        let (set, states) = (work.session.set(), work.states);
        let done = work.session.snapshot(&name);
        self.process.cancel_act();
        if self.process.is_dead() {
            return;
        }
        match done {
            Ok(_) => {
                self.check_snapshot(&name);
                self.world.acknowledge(set, self.process.number(), states);
            }
            Err(error) => self.check_error("snapshot", &error),
        }
        if let Some(beside) = beside {
            self.end_beside(beside, random);
        }
    }

    /// Checks that the snapshot shows one of the possible states.
    fn check_snapshot(&self, name: &str) {
        let world = &self.world;
        world.truth.lock().confirm_name(name);
        match world.machine.pause(|| world.check_name(&world.observer(), name)) {
            Ok(None) => {}
            Ok(Some(reason)) => world.fail(format!("the snapshot {name}: {reason}")),
            Err(error) => world.fail(format!("the snapshot {name}: {error:?}")),
        }
    }

    /// Lets another thread sync, flush or compact during the next call.
    fn make_durable_beside(&self, work: &Work, random: &mut Random) {
        let acts: [fn(&Session) -> Result<()>; 3] =
            [Session::sync, Session::flush, Session::compact];
        let act = pick(random, &acts);
        let (world, session) = (self.world.clone(), work.session.clone());
        let (owner, states) = (self.process.number(), work.states);
        // The session's own markers are put under a lock that reclaiming data logs needs.
        let own = format!("ref/{}/", session.set());
        let is_wanted = move |name: &str| {
            (name.starts_with("ref/") || name.starts_with("name/")) && !name.starts_with(&own)
        };
        self.process.act_before(is_wanted, random.below(REQUESTS), move || {
            if act(&session).is_ok() {
                world.acknowledge(session.set(), owner, states);
            }
        });
    }

    /// Lets another thread execute `operation` during the next call.
    fn operate_beside(
        &self,
        work: &Work,
        operation: Operation,
        random: &mut Random,
    ) -> BesideOperation {
        let mut next = work.reference.clone();
        let expected = next.run(&operation);
        let is_change = is_change(&work.reference, &next);
        let answer = Arc::new(Mutex::new(None));
        let beside = BesideOperation { operation, next, is_change, answer: answer.clone() };
        let (world, session) = (self.world.clone(), work.session.clone());
        let (operation, version) = (beside.operation.clone(), work.version(&beside.next, None));
        let (owner, states) = (self.process.number(), work.states);
        let is_durable = work.durability == Durability::Always;
        let is_wanted = |name: &str| name.starts_with("ref/") || name.starts_with("name/");
        self.process.act_before(is_wanted, random.below(REQUESTS), move || {
            let set = session.set();
            world.machine.record(|| format!("beside: {operation:?}"));
            world.with_lineage(set, owner, |lineage| lineage.pending = Some(version.clone()));
            let found = subject::try_run(&session, &operation);
            let is_right = agrees(&found, &expected);
            if is_right {
                world.with_lineage(set, owner, |lineage| {
                    lineage.pending = None;
                    lineage.states.extend(is_change.then_some(version));
                });
                if is_change && is_durable {
                    world.acknowledge(set, owner, states + 1);
                }
            }
            *answer.lock() = Some((found, is_right));
        });
        beside
    }

    /// Continues after the other thread's operation, if it was executed.
    fn end_beside(&mut self, beside: BesideOperation, random: &mut Random) {
        let BesideOperation { operation, next, is_change, answer } = beside;
        let Some(answer) = answer.lock().take() else { return };
        match answer {
            (_, true) => {
                if let Some(work) = self.work.as_mut().filter(|_| is_change) {
                    work.reference = next;
                    work.states += 1;
                    work.follow_in_place();
                }
            }
            (Err(error), false) => {
                self.check_error(&format!("{operation:?}, beside a snapshot"), &error);
                self.observe(next, None, random);
            }
            (found, false) => {
                self.world.fail(format!("{operation:?}, beside a snapshot: {found:?}"));
            }
        }
    }
}

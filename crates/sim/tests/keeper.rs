// SPDX-License-Identifier: Apache-2.0
//! Keeper: an actor that collects, compacts, squashes, unpublishes, reads and verifies.

use std::sync::Arc;

use esker_base::{Error, Kind, Random, Result};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::repository::Repository;
use esker_sim::{ActorId, ActorProcess};

use crate::checks::{World, findings, tree_of, verify_options};
use crate::history::{Step, StepKind};
use crate::reference::Reference;
use crate::truth::{Certainty, StackedTree, differs};

/// The keeper.
pub struct Keeper {
    world: Arc<World>,
    actor: ActorId,
    process: Arc<ActorProcess>,
    repository: Repository,
}

impl Keeper {
    pub fn new(world: &Arc<World>, actor: ActorId) -> Self {
        let process = world.machine.start_process(actor);
        let repository = world.repository(&process);
        Self { world: world.clone(), actor, process, repository }
    }

    /// Executes `steps`.
    pub fn run(mut self, steps: &[Step]) {
        for step in steps {
            if self.world.machine.has_failed() {
                return;
            }
            if self.process.is_dead() {
                self.process = self.world.machine.start_process(self.actor);
                self.repository = self.world.repository(&self.process);
            }
            let mut random = Random::from_seed(step.seed);
            self.world.machine.record(|| format!("keeper {}: {:?}", self.actor.0, step.kind));
            if let Err(error) = self.act(step.kind, &mut random) {
                self.check_error(step.kind, &error);
            }
            let with_verify = random.one_in(3);
            self.world.machine.pause(|| self.world.check(with_verify));
        }
    }

    fn act(&self, kind: StepKind, random: &mut Random) -> Result<()> {
        match kind {
            StepKind::Collect => return self.collect(),
            StepKind::Verify => return self.verify(),
            StepKind::Stack => return self.stack(random),
            _ => {}
        }
        let Some((name, reference)) = self.pick_name(random) else { return Ok(()) };
        let acted = match kind {
            StepKind::CompactName => self.repository.compact(&name).map(drop),
            StepKind::Squash => self.squash(&name, &reference),
            StepKind::Unpublish => self.unpublish(&name),
            StepKind::Read => self.read(&name, &reference),
            _ => unreachable!("{kind:?} is a step of a writer"),
        };
        match acted {
            // Another keeper may have unpublished it meanwhile.
            Err(error) if error.kind() == Kind::NotFound => {
                if self.world.truth.lock().is_published(&name) { Err(error) } else { Ok(()) }
            }
            acted => acted,
        }
    }

    /// A published name and its tree.
    fn pick_name(&self, random: &mut Random) -> Option<(String, Reference)> {
        let truth = self.world.truth.lock();
        let published: Vec<_> = truth
            .names
            .iter()
            .filter(|(_, named)| named.certainty == Certainty::Published)
            .collect();
        let (name, named) = published.get(random.below(published.len() as u64) as usize)?;
        Some(((*name).clone(), named.reference.clone()))
    }

    /// Fails the run unless the history's faults can cause `error`.
    fn check_error(&self, kind: StepKind, error: &Error) {
        let history = &self.world.history;
        let is_lawful = match error.kind() {
            Kind::Unavailable | Kind::Closed | Kind::NoSpace => history.has_errors(),
            Kind::Fenced | Kind::Conflict => kind != StepKind::Collect,
            Kind::NotFound => history.is_eager(),
            _ => false,
        };
        if !is_lawful && !self.process.is_dead() {
            self.world.fail(format!("keeper {}: {kind:?}: {error:?}", self.actor.0));
        }
    }

    fn collect(&self) -> Result<()> {
        let report = self.repository.gc(&self.world.gc_options())?;
        if !report.problems.is_empty() && !self.process.is_dead() {
            self.world.fail(format!("a collection has problems: {}", report.problems.join("\n")));
        }
        Ok(())
    }

    fn verify(&self) -> Result<()> {
        let report = self.repository.verify(&verify_options())?;
        if !report.is_sound() && !self.process.is_dead() && !self.world.history.is_eager() {
            self.world.fail(format!("verify beside others:\n{}", findings(&report)));
        }
        Ok(())
    }

    fn read(&self, name: &str, reference: &Reference) -> Result<()> {
        let set = self.repository.resolve(name)?.set;
        let found = tree_of(&self.repository, &[set])?;
        if let Some(reason) = differs(&found, reference) {
            self.world.fail(format!("{name} reads as something else: {reason}"));
        }
        Ok(())
    }

    /// Records the stack of two names, read between turns.
    fn stack(&self, random: &mut Random) -> Result<()> {
        let (Some((upper, _)), Some((lower, _))) = (self.pick_name(random), self.pick_name(random))
        else {
            return Ok(());
        };
        let names = [upper, lower];
        let tree = self.world.machine.pause(|| {
            let observer = self.world.observer();
            self.world.stacked_tree(&observer, &names)
        })?;
        self.world.truth.lock().stacks.push(StackedTree { names, tree });
        Ok(())
    }

    fn squash(&self, name: &str, reference: &Reference) -> Result<()> {
        let set = self.repository.resolve(name)?.set;
        let options = SquashOptions { threads: 1, ..SquashOptions::default() };
        let (squashed, _) = self.repository.squash(&[set], &options)?;
        let fresh = self.world.truth.lock().promise_name(reference);
        self.repository.publish(squashed, &fresh)?;
        self.world.truth.lock().confirm_name(&fresh);
        Ok(())
    }

    fn unpublish(&self, name: &str) -> Result<()> {
        if let Some(named) = self.world.truth.lock().names.get_mut(name) {
            named.certainty = Certainty::Withdrawn;
        }
        self.repository.delete(name)?;
        self.world.truth.lock().names.remove(name);
        Ok(())
    }
}

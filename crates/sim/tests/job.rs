// SPDX-License-Identifier: Apache-2.0
//! Job: parts that are written separately above one base and published as one set.
//!
//! The parts change different names, so the job's tree is that of the base plus all their files. A
//! job whose process dies is forgotten; if its name exists, it must show everything.

use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::{Kind, Random, Result};
use esker_fs::job::JobId;
use esker_fs::repository::Repository;
use esker_sim::ActorProcess;
use esker_table::manifest::SetId;
use esker_table::tree::TreeOptions;

use crate::checks::{World, options};
use crate::operation::{Content, Operation, TargetPath};
use crate::reference::Reference;
use crate::subject;
use crate::truth::Certainty;

/// Writes the parts of a job and publishes it.
pub fn run_job(
    world: &World,
    process: &Arc<ActorProcess>,
    repository: &Repository,
    random: &mut Random,
) {
    let (base, mut reference) = base_of(world, random);
    match write_and_publish(world, repository, base.as_deref(), &mut reference, random) {
        Err(error) if !process.is_dead() => {
            let is_lawful = match error.kind() {
                Kind::Unavailable | Kind::Closed | Kind::NoSpace => world.history.has_errors(),
                Kind::Fenced | Kind::Conflict => true,
                Kind::NotFound => {
                    let is_gone = |name: String| !world.truth.lock().is_published(&name);
                    world.history.is_eager() || base.is_some_and(is_gone)
                }
                _ => false,
            };
            if !is_lawful {
                world.fail(format!("job: {error:?}"));
            }
        }
        _ => {}
    }
}

/// A published name to build on, and its tree; or none.
fn base_of(world: &World, random: &mut Random) -> (Option<String>, Reference) {
    let truth = world.truth.lock();
    let published: Vec<_> =
        truth.names.iter().filter(|(_, named)| named.certainty == Certainty::Published).collect();
    match published.get(random.below(published.len() as u64 + 1) as usize) {
        Some((name, named)) => (Some((*name).clone()), named.reference.clone()),
        None => {
            let clock: Arc<ManualClock> = world.machine.clock().clone();
            (None, Reference::new(clock))
        }
    }
}

fn write_and_publish(
    world: &World,
    repository: &Repository,
    base: Option<&str>,
    reference: &mut Reference,
    random: &mut Random,
) -> Result<()> {
    let mut bases: Vec<SetId> = Vec::new();
    if let Some(name) = base {
        bases.push(repository.resolve(name)?.set);
    }
    let job = JobId(random.u128());
    let mut parts = Vec::new();
    for rank in 0..1 + random.below(3) as u32 {
        let session = repository.begin_part(job, rank, &bases, options(TreeOptions::default()))?;
        for file in 0..1 + random.below(4) {
            let name = format!("part{rank}.{file}.{}", random.below(1_000)).into_bytes();
            let content = Content { bytes: random.below(3_000) as usize, seed: random.next_u64() };
            let at = TargetPath { dir: b"/".to_vec(), name };
            let operation = Operation::Write { at, mode: 0o644, content };
            if reference.run(&operation).is_ok() {
                subject::try_run(&session, &operation)?;
            }
            if random.one_in(4) {
                session.flush()?;
            }
        }
        parts.push(session.complete()?);
    }
    let name = world.truth.lock().promise_name(reference);
    repository.publish_job(&parts, &name)?;
    world.truth.lock().confirm_name(&name);
    Ok(())
}

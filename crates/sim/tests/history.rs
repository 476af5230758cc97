// SPDX-License-Identifier: Apache-2.0
//! History: the data that define a run, drawn from a seed and open to shrinking.
//!
//! Each step carries its own seed, so it does not change when other steps are removed.

use std::time::Duration;

use esker_base::store::FaultEffect;
use esker_base::{Kind, Random};
use esker_sim::{FaultKind, RequestFault};

use crate::random_operation::pick;

/// Average number of requests per step, roughly; used to place faults.
const REQUESTS_PER_STEP: u64 = 8;

/// Separates the random numbers of clocks from others.
const CLOCKS_SEED: u64 = 0x636c_6f63_6b73;
/// Seconds by which a clock is ahead: none, less than a grace period, or more.
const CLOCK_OFFSETS_S: &[i64] = &[0, 0, 1, -1, 60, -60, 800, -800, 4_000, -4_000];

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// A writer executes one operation.
    Operation,
    /// It writes parts of a file through a handle.
    Patch,
    /// It writes a file through the store's own file, as the kernel does.
    InPlace,
    /// It writes a file large enough for its own log, and syncs in the middle.
    WriteLarge,
    /// It opens a file, removes it, and reads it from time to time.
    OpenRemoved,
    /// It opens a file, renames or links it, and writes it through the handle.
    OpenMoved,
    /// It writes the parts of a job and publishes them as one set.
    Job,
    Sync,
    Flush,
    Compact,
    Snapshot,
    Publish,
    /// Its process dies, and another continues its set.
    Restart,
    /// It leaves its session and continues the set of another writer, which may still be alive.
    TakeOver,
    /// A keeper collects garbage.
    Collect,
    /// It compacts a published set.
    CompactName,
    /// It squashes a published stack and publishes the result.
    Squash,
    /// It records the stack of two published sets, which must never change.
    Stack,
    /// It unpublishes a name.
    Unpublish,
    /// It reads all of a published tree.
    Read,
    Verify,
}

impl StepKind {
    pub fn is_of_keeper(self) -> bool {
        KEEPER.iter().any(|(_, kind)| *kind == self)
    }
}

/// One step of an actor, with the seed of its choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: StepKind,
    pub seed: u64,
}

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Seed of the schedule and of the effects of faults.
    pub seed: u64,
    pub switch_one_in: u64,
    /// Time for which a collector spares objects that may still be in use.
    pub grace: Duration,
    pub faults: Vec<RequestFault>,
    /// Seconds by which each actor's clock is ahead of the store's.
    pub clock_offsets_s: Vec<i64>,
    /// The steps of each actor.
    pub actors: Vec<Vec<Step>>,
}

const WRITER: &[(u64, StepKind)] = &[
    (60, StepKind::Operation),
    (12, StepKind::Patch),
    (6, StepKind::InPlace),
    (2, StepKind::OpenRemoved),
    (4, StepKind::OpenMoved),
    (3, StepKind::Job),
    (8, StepKind::Sync),
    (4, StepKind::Flush),
    (3, StepKind::Compact),
    (4, StepKind::Snapshot),
    (4, StepKind::Publish),
    (3, StepKind::Restart),
    (2, StepKind::TakeOver),
];

const KEEPER: &[(u64, StepKind)] = &[
    (30, StepKind::Collect),
    (12, StepKind::CompactName),
    (12, StepKind::Squash),
    (10, StepKind::Stack),
    (14, StepKind::Unpublish),
    (20, StepKind::Read),
    (12, StepKind::Verify),
];

/// Draws steps of `kinds`. The frequency of each kind, and whether it is left out, differs from
/// actor to actor, so that rare combinations occur (Groce et al., "Swarm testing", ISSTA 2012).
fn draw(random: &mut Random, kinds: &[(u64, StepKind)], steps: u64) -> Vec<Step> {
    let scale = |(weight, kind): &(u64, StepKind)| (weight * pick(random, &[0, 1, 1, 4]), *kind);
    let mut kinds: Vec<(u64, StepKind)> = kinds.iter().map(scale).collect();
    kinds[0].0 += 10;
    let total = kinds.iter().map(|(weight, _)| weight).sum();
    let one = |random: &mut Random| {
        let mut left = random.below(total);
        for (weight, kind) in &kinds {
            if left < *weight {
                return Step { kind: *kind, seed: random.next_u64() };
            }
            left -= weight;
        }
        unreachable!("what was drawn is below the sum of the weights")
    };
    (0..steps).map(|_| one(random)).collect()
}

impl History {
    /// The history of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::from_seed(seed);
        let mut actors = Vec::new();
        for _ in 0..1 + random.below(3) {
            let steps = 10 + random.below(40);
            let mut writer = draw(&mut random, WRITER, steps);
            // Megabytes take time, so few histories have them.
            if random.one_in(12) {
                let at = random.below(steps) as usize;
                writer[at].kind = StepKind::WriteLarge;
            }
            actors.push(writer);
        }
        for _ in 0..1 + random.below(2) {
            let steps = 4 + random.below(12);
            actors.push(draw(&mut random, KEEPER, steps));
        }
        let is_eager = random.one_in(3);
        // Drawn separately, so that the rest of a history does not depend on it.
        let clocks = &mut Random::from_seed(seed ^ CLOCKS_SEED);
        let are_right = clocks.one_in(2);
        let offset = |_| if are_right { 0 } else { pick(clocks, CLOCK_OFFSETS_S) };
        let clock_offsets_s = actors.iter().map(offset).collect();
        let steps: usize = actors.iter().map(Vec::len).sum();
        let requests = steps as u64 * REQUESTS_PER_STEP;
        Self {
            seed: random.next_u64(),
            switch_one_in: pick(&mut random, &[1, 2, 5, 20]),
            grace: Duration::from_secs(if is_eager { 0 } else { 3600 }),
            faults: faults(&mut random, requests),
            clock_offsets_s,
            actors,
        }
    }

    /// Returns whether valid requests may fail.
    pub fn has_errors(&self) -> bool {
        self.faults.iter().any(|fault| !matches!(fault.kind, FaultKind::Stall { .. }))
    }

    /// Returns whether a collector may take objects in use, so that their user fails and tries
    /// again. This happens without a grace period, or if a stall or a clock's lead is as long as
    /// that.
    pub fn is_eager(&self) -> bool {
        let stalls = self.faults.iter().filter_map(|fault| match fault.kind {
            FaultKind::Stall { time, .. } => Some(time),
            _ => None,
        });
        let least = self.clock_offsets_s.iter().min().copied().unwrap_or(0).min(0);
        let most = self.clock_offsets_s.iter().max().copied().unwrap_or(0).max(0);
        let apart = Duration::from_secs(most.abs_diff(least));
        (stalls.sum::<Duration>() + apart) * 2 >= self.grace
    }
}

fn faults(random: &mut Random, requests: u64) -> Vec<RequestFault> {
    let effects = [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full];
    let count = random.below(5);
    let has_stalls_only = random.one_in(4);
    let one = |_| {
        let effect = pick(random, &effects);
        let kind = match random.below(if has_stalls_only { 3 } else { 10 }) {
            0..3 => FaultKind::Stall {
                requests: random.below(200),
                time: Duration::from_secs(pick(random, &[1, 60, 900, 7200])),
            },
            3..6 => FaultKind::ProcessDeath { effect, loses_buffers: random.one_in(2) },
            6..8 => FaultKind::PowerLoss,
            8 => FaultKind::Error { kind: Kind::Unavailable, effect },
            _ => FaultKind::Full { requests: random.below(40) },
        };
        RequestFault { at: 1 + random.below(requests), kind }
    };
    (0..count).map(one).collect()
}

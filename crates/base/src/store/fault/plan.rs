// SPDX-License-Identifier: Apache-2.0
//! Plan: the fate of each operation, and how much of each log would survive power loss.

use std::collections::BTreeMap;
use std::time::Duration;

use super::FaultEffect;
use crate::{Error, Kind, Random};

#[derive(Debug)]
pub(super) struct FaultPlan {
    pub(super) random: Random,
    pub(super) operations: u64,
    pub(super) stopped: bool,
    pub(super) stop: Option<(u64, FaultEffect)>,
    pub(super) failures: BTreeMap<u64, (Kind, FaultEffect)>,
    pub(super) fail_one_in: (u64, Kind),
    /// The operation from which on there is no room, and the effect of operations that need some.
    pub(super) full: Option<(u64, FaultEffect)>,
    pub(super) delay_max: Duration,
    /// Logs written through this store; all others are older and count as synced.
    pub(super) logs: BTreeMap<String, LogDurability>,
}

/// The durable part of a log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogDurability {
    /// Bytes that survive power loss; `None` until the first sync, since not even the name
    /// survives.
    pub(super) synced: Option<u64>,
}

/// The outcome of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum OperationFate {
    /// It takes place.
    Done,
    /// It fails. `share` is random and selects how much of it takes place; `n` is its number.
    Failed { kind: Kind, effect: FaultEffect, share: u64, n: u64 },
}

impl FaultPlan {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed),
            operations: 0,
            stopped: false,
            stop: None,
            failures: BTreeMap::new(),
            fail_one_in: (0, Kind::Unavailable),
            full: None,
            delay_max: Duration::ZERO,
            logs: BTreeMap::new(),
        }
    }

    /// Returns whether the next operation fails if it needs room.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some_and(|(from, _)| self.operations + 1 >= from)
    }

    /// Returns the fate of the next operation and the delay before it.
    pub(super) fn draw(&mut self, needs_room: bool) -> (OperationFate, Duration) {
        let delay_ns = u64::try_from(self.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let delay = Duration::from_nanos(self.random.below(delay_ns));
        (self.draw_fate(needs_room), delay)
    }

    fn draw_fate(&mut self, needs_room: bool) -> OperationFate {
        let n = self.operations;
        if self.stopped {
            return OperationFate::Failed {
                kind: Kind::Closed,
                effect: FaultEffect::None,
                share: 0,
                n,
            };
        }
        self.operations += 1;
        let n = self.operations;
        let share = self.random.next_u64();
        if let Some((at, effect)) = self.stop
            && n >= at
        {
            self.stopped = true;
            return OperationFate::Failed { kind: Kind::Closed, effect, share, n };
        }
        if let Some((kind, effect)) = self.failures.remove(&n) {
            return OperationFate::Failed { kind, effect, share, n };
        }
        if let Some((from, effect)) = self.full
            && needs_room
            && n >= from
        {
            return OperationFate::Failed { kind: Kind::NoSpace, effect, share, n };
        }
        let (chances, kind) = self.fail_one_in;
        if self.random.one_in(chances) {
            return OperationFate::Failed { kind, effect: FaultEffect::None, share, n };
        }
        OperationFate::Done
    }
}

/// Returns the error that a fault reports.
pub(super) fn fault(kind: Kind, what: &str, name: &str, n: u64) -> Error {
    Error::new(kind, format!("{what} {name}: injected fault at operation {n}"))
}

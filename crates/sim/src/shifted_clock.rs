// SPDX-License-Identifier: Apache-2.0
//! Shifted clock: the machine's clock as seen by a computer whose own clock is fast or slow.

use std::sync::Arc;

use esker_base::clock::{Clock, ManualClock};

/// A clock with a constant offset from another clock.
#[derive(Clone, Debug)]
pub struct ShiftedClock {
    clock: Arc<ManualClock>,
    offset_ns: i64,
}

impl ShiftedClock {
    /// A clock that is `offset_ns` nanoseconds ahead of `clock`, or behind it if negative.
    #[must_use]
    pub fn new(clock: Arc<ManualClock>, offset_ns: i64) -> Self {
        Self { clock, offset_ns }
    }
}

impl Clock for ShiftedClock {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns().saturating_add_signed(self.offset_ns)
    }

    fn monotonic_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }
}

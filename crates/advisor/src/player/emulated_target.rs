// SPDX-License-Identifier: Apache-2.0
//! Emulated target: another target whose calls take at least as long as on emulated hardware.
//!
//! A call is made first, so that its bytes are checked and its software counts; then it waits until
//! the hardware would have answered. The time is the longer of both, so hardware that is slower
//! than the machine's can be emulated, and no faster.

use esker_base::Result;
use esker_workbench::pace::{PaceClock, Waiting};
use parking_lot::Mutex;

use super::emulated_hardware::EmulatedHardware;
use super::{LoadState, ReplayConnection, ReplayPlan, ReplayStep, ReplayTarget, RequestLayout};
use crate::features::StorageConfiguration;
use crate::observation::StorageKind;

/// A target on emulated servers, clients and devices.
pub struct EmulatedTarget<'a> {
    target: Box<dyn ReplayTarget>,
    hardware: Mutex<EmulatedHardware>,
    clock: &'a dyn PaceClock,
    processors: u32,
}

impl<'a> EmulatedTarget<'a> {
    /// Puts `target` on the hardware of `configuration`. Ranks share `processors`.
    #[must_use]
    pub fn new(
        target: Box<dyn ReplayTarget>,
        configuration: StorageConfiguration,
        clock: &'a dyn PaceClock,
        processors: u32,
    ) -> Self {
        let hardware = Mutex::new(EmulatedHardware::new(configuration, target.layout()));
        Self { target, hardware, clock, processors }
    }
}

impl ReplayTarget for EmulatedTarget<'_> {
    fn system(&self) -> String {
        self.target.system()
    }

    fn storage_kind(&self) -> StorageKind {
        self.target.storage_kind()
    }

    fn layout(&self) -> RequestLayout {
        self.target.layout()
    }

    fn target(&self) -> String {
        self.target.target()
    }

    fn load_state(&self) -> Result<LoadState> {
        self.target.load_state()
    }

    fn load(&self, plan: &ReplayPlan) -> Result<()> {
        self.target.load(plan)
    }

    fn drop_caches(&self) -> Result<()> {
        self.target.drop_caches()
    }

    fn connect(&self, rank: u32, plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>> {
        Ok(Box::new(EmulatedConnection {
            connection: self.target.connect(rank, plan)?,
            emulated: self,
            rank,
            waiting: Waiting::of(plan.rank_count(), self.processors),
        }))
    }

    fn clear(&self) -> Result<()> {
        self.target.clear()
    }

    fn finish(&self, is_kept: bool) -> Result<()> {
        self.target.finish(is_kept)
    }
}

struct EmulatedConnection<'a> {
    connection: Box<dyn ReplayConnection + 'a>,
    emulated: &'a EmulatedTarget<'a>,
    rank: u32,
    waiting: Waiting,
}

impl ReplayConnection for EmulatedConnection<'_> {
    fn call(&mut self, step: &ReplayStep, buffer: &mut Vec<u8>) -> Result<bool> {
        let begin_ns = self.emulated.clock.monotonic_ns();
        let end_ns = self.emulated.hardware.lock().end_ns(self.rank, step, begin_ns);
        let is_done = self.connection.call(step, buffer)?;
        self.connection.wait_until_ns(end_ns, self.emulated.clock, self.waiting)?;
        Ok(is_done)
    }

    fn wait_until_ns(
        &mut self,
        until_ns: u64,
        clock: &dyn PaceClock,
        waiting: Waiting,
    ) -> Result<()> {
        self.connection.wait_until_ns(until_ns, clock, waiting)
    }

    fn wait_for_ranks(&mut self) -> Result<()> {
        self.connection.wait_for_ranks()
    }
}

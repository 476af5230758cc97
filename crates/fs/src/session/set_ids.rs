// SPDX-License-Identifier: Apache-2.0
//! Set ids: source of the identities of new change sets.
//!
//! Writers draw identities without coordination, so each is 128 random bits from the kernel, drawn
//! when needed: a forked process shares no generator with its parent. A simulation replays a run
//! from a seed, which it also passes here.

use esker_base::Random;
use esker_table::manifest::SetId;
use parking_lot::Mutex;

/// Draws the identities of new change sets.
#[derive(Debug, Default)]
pub(crate) struct SetIds {
    /// The generator of a simulation; `None` to draw from the kernel.
    seeded: Option<Mutex<Random>>,
}

impl SetIds {
    /// Derives identities from `seed`.
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self { seeded: Some(Mutex::new(Random::from_seed(seed))) }
    }

    /// Returns a new identity.
    pub(crate) fn draw(&self) -> SetId {
        let bits = match &self.seeded {
            Some(random) => random.lock().u128(),
            None => Random::from_system().u128(),
        };
        SetId(bits)
    }
}

//! Set ids: where the identities of new change sets come from.
//!
//! Writers everywhere draw identities without asking each other, so each is 128 bits from the
//! kernel, drawn when it is needed: a process that forks shares no generator with its child. A
//! simulation replays a run from a seed, and gives a seed here too.

use esker_base::Random;
use esker_table::manifest::SetId;
use parking_lot::Mutex;

/// Draws the identities of new change sets.
#[derive(Debug, Default)]
pub(crate) struct SetIds {
    /// The generator of a simulation; the kernel draws otherwise.
    seeded: Option<Mutex<Random>>,
}

impl SetIds {
    /// Identities that follow from `seed`.
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self { seeded: Some(Mutex::new(Random::from_seed(seed))) }
    }

    /// A new identity.
    pub(crate) fn draw(&self) -> SetId {
        let bits = match &self.seeded {
            Some(random) => random.lock().u128(),
            None => Random::from_system().u128(),
        };
        SetId(bits)
    }
}

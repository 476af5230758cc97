// SPDX-License-Identifier: Apache-2.0
//! Setup of trees in tests: records alone, with no heartbeat, and nothing that they depend on.

use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::store::SharedStore;

use super::{Durability, TreeOptions, TreeSetup};
use crate::family::NoFamily;
use crate::schema::record::RECORD;
use crate::tables::TableSource;

/// A tree of `durability` without threads.
pub(super) fn setup(store: &SharedStore, durability: Durability) -> TreeSetup {
    TreeSetup {
        schema: &RECORD,
        family: &NoFamily,
        source: TableSource::new(store.clone(), 1 << 20),
        clock: Arc::new(ManualClock::new(1)),
        options: TreeOptions { durability, background: false, ..TreeOptions::default() },
        sync_dependencies: Arc::new(|| Ok(())),
        log_companion: None,
        heartbeat: None,
    }
}

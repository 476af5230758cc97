// SPDX-License-Identifier: Apache-2.0
//! Image: the state of the store after a crash, copied into memory so that it can be opened and
//! written again.

use std::sync::Arc;

use bytes::Bytes;

use super::FaultState;
use super::plan::LogDurability;
use crate::store::{MemoryStore, SharedStore};
use crate::{Random, Result};

/// Bytes that a device writes or loses as a unit.
const PAGE_BYTES: usize = 4096;

/// Copies the inner store; `survives` returns what remains of each log that was written here.
pub(super) fn take(
    shared: &FaultState,
    survives: impl Fn(&mut Random, LogDurability, Bytes) -> Option<Bytes>,
) -> Result<SharedStore> {
    let image = MemoryStore::new();
    for info in shared.inner.list("")? {
        let bytes = shared.inner.get(&info.name, u64::MAX)?;
        let mut plan = shared.plan.lock();
        let found = match plan.logs.get(&info.name).copied() {
            Some(state) => survives(&mut plan.random, state, bytes),
            None => Some(bytes),
        };
        if let Some(bytes) = found {
            image.insert_stamped(&info.name, bytes, info.modified_ns)?;
        }
    }
    Ok(Arc::new(image))
}

/// Returns what a power loss leaves of a log that holds `bytes`.
pub(super) fn lose_power(random: &mut Random, log: LogDurability, bytes: Bytes) -> Option<Bytes> {
    let Some(synced) = log.synced else {
        return if random.one_in(2) { None } else { Some(tear(random, 0, &bytes)) };
    };
    let synced = usize::try_from(synced).expect("the log is in memory");
    Some(tear(random, synced, &bytes))
}

fn tear(random: &mut Random, synced: usize, bytes: &[u8]) -> Bytes {
    let kept = synced + below(random, bytes.len() - synced + 1);
    let mut found = bytes[..kept].to_vec();
    let unsynced = kept - synced;
    if unsynced == 0 {
        return found.into();
    }
    let from = synced + below(random, unsynced);
    match below(random, 4) {
        0 => {}
        // The size reached the disk but the bytes did not.
        1 => found[from..].fill(0),
        2 => random.fill(&mut found[from..]),
        // A page was lost but later ones were not.
        _ => {
            let end = (from / PAGE_BYTES + 1) * PAGE_BYTES;
            found[from..end.min(kept)].fill(0);
        }
    }
    found.into()
}

fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a number that fits")
}

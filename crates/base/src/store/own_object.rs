// SPDX-License-Identifier: Apache-2.0
//! Own object: a put whose caller recognizes its object if the answer is lost.
//!
//! A store's client may repeat a put whose first answer was lost, and then reports that the name is
//! taken. Where nobody else puts the same bytes under the name, an object with these bytes is the
//! caller's. Commits of manifests look for more than that (`esker_table::manifest`).

use super::Store;
use crate::{Kind, Result};

/// Puts an object of `bytes` that no other process puts under `name`. Durable when it returns. One
/// write request, and one read request if the answer is lost.
///
/// # Errors
/// `Exists` if the name is taken by other bytes; as [`Store::put_if_absent`].
pub fn put_own(store: &dyn Store, name: &str, bytes: &[u8]) -> Result<()> {
    let is_there = || store.get(name, bytes.len() as u64).is_ok_and(|found| found == bytes);
    match store.put_if_absent(name, bytes) {
        Err(error) if matches!(error.kind(), Kind::Exists | Kind::Unavailable) && is_there() => {
            Ok(())
        }
        put => put,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::{FaultEffect, FaultStore, MemoryStore};

    #[test]
    fn a_put_whose_answer_was_lost_is_recognized() {
        for (effect, is_put) in [(FaultEffect::Full, true), (FaultEffect::None, false)] {
            let memory = Arc::new(MemoryStore::new());
            let faulty = FaultStore::new(memory.clone(), 1);
            faulty.fail_at_with(1, Kind::Unavailable, effect);
            let put = put_own(&faulty, "a", b"mine");
            assert_eq!(put.is_ok(), is_put, "{put:?}");
            // The store's client repeats the put.
            assert!(put_own(&*memory, "a", b"mine").is_ok());
        }
    }

    #[test]
    fn the_object_of_another_process_is_refused() {
        let store = MemoryStore::new();
        for other in [&b"other"[..], b"a longer one", b""] {
            store.put_if_absent("a", other).expect("put");
            let refused = put_own(&store, "a", b"mine!").expect_err("taken");
            assert_eq!(refused.kind(), Kind::Exists);
            store.delete("a").expect("delete");
        }
    }
}

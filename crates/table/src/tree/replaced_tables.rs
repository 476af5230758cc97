// SPDX-License-Identifier: Apache-2.0
//! Replaced tables: objects of tables that merges replaced and no collection has deleted yet.
//!
//! A writer cannot delete them, since it does not know their readers, so merges that reads pay for
//! must not let them accumulate: such a merge begins only while these objects would take at most
//! [`REPLACED_FACTOR`] times the space of the tables that replaced them.

use std::collections::HashMap;

use esker_base::Result;

use super::{FlushState, TreeShared};
use crate::object_name::{ObjectFolder, ObjectName};

/// Bytes of replaced tables for each byte of listed ones, up to which reads may have runs merged.
const REPLACED_FACTOR: u64 = 2;
/// Bytes of replaced tables up to which reads may always have runs merged.
const REPLACED_BYTES_MIN: u64 = 64 << 20;

impl TreeShared {
    /// Returns whether the tables of a merge of `merged_bytes` may join the replaced ones. Forgets
    /// replaced tables that were deleted. Cost: a listing.
    pub(super) fn may_replace(&self, state: &mut FlushState, merged_bytes: u64) -> Result<bool> {
        let number = |name: &str| match name.parse() {
            Ok(ObjectName::Table(_, number)) => Some(number),
            _ => None,
        };
        let objects = self.store().list(&ObjectFolder::Tables(self.set).to_string())?;
        let mut replaced: HashMap<u64, u64> = objects
            .iter()
            .filter_map(|object| Some((number(&object.name)?, object.bytes)))
            .collect();
        // The next commit records it, no matter which caller makes it.
        state.manifest.obsolete.retain(|number| replaced.contains_key(number));
        let mut listed_bytes = 0u64;
        for table in state.manifest.tables.iter().filter(|table| table.set == self.set) {
            // Several references may show one object.
            let bytes = replaced.remove(&table.number).unwrap_or(0);
            listed_bytes = bytes.saturating_add(listed_bytes);
        }
        let replaced_bytes =
            replaced.into_values().fold(merged_bytes, |sum, bytes| sum.saturating_add(bytes));
        let bytes_max = listed_bytes.saturating_mul(REPLACED_FACTOR).max(REPLACED_BYTES_MIN);
        Ok(replaced_bytes <= bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::{MemoryStore, SharedStore};

    use super::*;
    use crate::manifest::{Manifest, SetId};
    use crate::schema::record;
    use crate::tree::test_setup::setup;
    use crate::tree::{Durability, Tree};

    #[test]
    fn replaced_tables_are_bounded_and_forgotten_once_deleted() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let setup = setup(&store, Durability::Async);
        let tree = Tree::create(setup, SetId(1), Manifest::new(vec![], 0))?;
        let put = |number: u32| {
            let key = number.to_be_bytes();
            tree.update([record::key(&key)], None, |_, batch| {
                batch.put(&mut [record::row(&key, b"value")]);
                Ok(())
            })
        };
        for number in 0..3 {
            put(number)?;
            tree.flush()?;
        }
        tree.compact()?;
        let manifest = tree.manifest();
        let replaced = manifest.obsolete.clone();
        assert_eq!((replaced.len(), manifest.tables.len()), (3, 1));
        let folder = ObjectFolder::Tables(SetId(1)).to_string();
        let objects = store.list(&folder)?;
        let listed = manifest.tables[0].name();
        let replaced_objects = objects.iter().filter(|object| object.name != listed);
        let replaced_bytes: u64 = replaced_objects.map(|object| object.bytes).sum();
        let state = &mut tree.inner.flush.lock();
        let free = REPLACED_BYTES_MIN - replaced_bytes;
        assert!(tree.inner.may_replace(state, free)?);
        assert!(!tree.inner.may_replace(state, free + 1)?);
        assert_eq!(state.manifest.obsolete, replaced);
        // A collection deletes one of them.
        store.delete(&format!("{folder}{:016x}", replaced[1]))?;
        assert!(tree.inner.may_replace(state, free + 1)?);
        assert_eq!(state.manifest.obsolete, [replaced[0], replaced[2]]);
        Ok(())
    }
}

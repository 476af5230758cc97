// SPDX-License-Identifier: Apache-2.0
//! Unsealed sets: reads a change set that is not published, without disturbing its writer.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_extent::SegmentTables;
use esker_table::LOG_MAGIC;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName};
use esker_table::tables::TableRuns;

use crate::inode::INODE;
use crate::repository::Repository;
use crate::retention::condemn::{self, DeletionPhase};
use crate::stack::identity::Identity;
use crate::stack::layers::{BaseSet, LayerStack, load_stack};
use crate::stack::namespace::Namespace;

impl Repository {
    /// Opens `set` and everything it builds on as of its last flush, published or not. Its writer
    /// is not fenced; changes that are only in its memory or log are not shown. A running writer
    /// may delete tables that this still reads; reads then fail with `NotFound`, and the caller
    /// opens the set again. Cost: two store requests per change set.
    ///
    /// # Errors
    /// `NotFound` if the set is gone or being deleted; as [`Repository::open`].
    pub fn open_unsealed(&self, set: SetId, identity: Identity) -> Result<Namespace> {
        let manifest = Manifest::load(&**self.store(), set)?;
        // A condemned set is whole; if it is held, its next user restores it.
        if !matches!(condemn::phase(&manifest), DeletionPhase::Live | DeletionPhase::Condemned) {
            let context = format!("change set {set} is being deleted");
            return Err(Error::new(Kind::NotFound, context));
        }
        let below = load_stack(self.source(), &manifest.bases)?;
        let tables = TableRuns::new(&manifest.tables, &INODE, self.source());
        let segments = SegmentTables::new(&manifest.tables, self.source());
        let mut stack = vec![Arc::new(BaseSet { set, manifest, tables, segments })];
        stack.extend(below);
        Namespace::new(LayerStack::new(self.source().clone(), stack, None), identity)
    }

    /// Returns the bytes in the logs of `set` that are not in tables yet, and that
    /// [`Repository::open_unsealed`] does not show. They belong to a running writer, or to one that
    /// died, until the set is resumed. Cost: two store requests and a listing.
    pub fn unflushed_bytes(&self, set: SetId) -> Result<u64> {
        let manifest = Manifest::load(&**self.store(), set)?;
        self.unflushed_bytes_of(set, &manifest)
    }

    /// Like [`Repository::unflushed_bytes`], for a set whose manifest is known. Cost: a listing.
    pub(crate) fn unflushed_bytes_of(&self, set: SetId, manifest: &Manifest) -> Result<u64> {
        if manifest.state != SetState::Open {
            return Ok(0);
        }
        let is_needed = |name: &str| match name.parse() {
            Ok(ObjectName::Log(_, number)) => number >= manifest.log_floor,
            _ => false,
        };
        let logs = self.store().list(&ObjectFolder::Logs(set).to_string())?;
        let bytes = logs.iter().filter(|log| is_needed(&log.name)).map(|log| log.bytes);
        Ok(bytes.map(|bytes| bytes.saturating_sub(LOG_MAGIC.len() as u64)).sum())
    }
}

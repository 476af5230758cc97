// SPDX-License-Identifier: Apache-2.0
//! Unsealed logs: data logs that their writer still writes in place, and to which records refer
//! without checksums (`in_place.rs`).
//!
//! A writer that is taken over may still be alive, and a kernel that has the log's file open may
//! write it at any time, without asking the store. So the new writer first copies the bytes of such
//! logs that records show: afterwards nothing that it publishes refers to a file that others may
//! write.

use esker_base::{Kind, Result};

use crate::session::Session;

impl Session {
    /// Declares in the manifest that records may refer to unsealed logs, before one does. Cost: a
    /// commit, once per session.
    pub(super) fn declare_unsealed(&self) -> Result<()> {
        if !self.tree().manifest().has_unsealed_logs {
            self.tree().commit(|manifest| manifest.has_unsealed_logs = true)?;
        }
        Ok(())
    }

    /// Copies the bytes that records show from unsealed logs of earlier writers to logs of this
    /// session, which has just taken over. Damaged bytes stay where they are, and their readers get
    /// the error. Cost: none if the manifest declares no such log; otherwise a read of the set's
    /// tables, the copied bytes, and a commit.
    ///
    /// # Errors
    /// `NoSpace`, `Fenced`; other errors of the store.
    pub(crate) fn seal_taken_over(&self) -> Result<()> {
        if !self.tree().manifest().has_unsealed_logs {
            return Ok(());
        }
        // All records are in tables: the session has replayed its logs and is not in use yet.
        self.visit_extents(self.tree().older_sources().rows(), &mut |key, inode| {
            let Some(extent) = inode.extent.filter(|extent| !extent.is_checked()) else {
                return Ok(());
            };
            match self.move_extent(key, inode, &extent) {
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => Ok(()),
                moved => moved,
            }
        })?;
        self.tree().commit(|manifest| manifest.has_unsealed_logs = false).map(drop)
    }
}

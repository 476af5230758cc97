//! Unsealed logs: data logs that their writer still writes in place, and that records refer to
//! without checksums (`in_place.rs`).
//!
//! A writer that is taken over may live, and a kernel that has the log's file writes it at any time,
//! without asking the store. So the new writer copies what records show of such logs before anybody
//! else can: afterwards nothing that it publishes refers to a file that others may write.

use esker_base::{Kind, Result};

use crate::session::Session;

impl Session {
    /// Has the manifest say that records may refer to unsealed logs, from before one does. Cost: a
    /// commit, once a session.
    pub(super) fn declare_unsealed(&self) -> Result<()> {
        if !self.tree().committed().has_unsealed_logs {
            self.tree().commit(|manifest| manifest.has_unsealed_logs = true)?;
        }
        Ok(())
    }

    /// Copies the bytes that records show of unsealed logs of earlier writers to logs of this one,
    /// which has just taken over. Bytes that are damaged stay where they are, and are reported to
    /// their readers. Cost: none if the manifest knows of no such log; else a read of the set's
    /// tables, the bytes that are copied, and a commit.
    ///
    /// # Errors
    /// `NoSpace`, `Fenced`; what else the store reports.
    pub(crate) fn seal_taken_over(&self) -> Result<()> {
        if !self.tree().committed().has_unsealed_logs {
            return Ok(());
        }
        // All records are in tables: the session has replayed its logs, and nobody uses it yet.
        self.visit_extents(&self.tree().tables().runs, &mut |key, inode| {
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

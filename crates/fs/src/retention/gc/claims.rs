// SPDX-License-Identifier: Apache-2.0
//! Claims of a collection: those of sets that are no parts any more, or never began, are removed.

use esker_base::{Kind, Result};

use super::GarbageCollection;

impl GarbageCollection<'_> {
    /// Removes old claims of sets that are gone, or are being deleted.
    pub(super) fn sweep_claims(&mut self) -> Result<()> {
        for (claim, put_ns) in std::mem::take(&mut self.claims) {
            let may_go = self.is_doomed(claim.set) || self.never_began(claim.set);
            if !may_go || !self.is_old(put_ns) {
                continue;
            }
            let removed = match self.doom_missing(claim.set) {
                // It has begun meanwhile.
                Ok(false) => continue,
                Ok(true) if self.options.dry_run => Ok(()),
                Ok(true) => claim.remove(self.store()),
                Err(error) => Err(error),
            };
            match &removed {
                Ok(()) => self.report.stale_markers += 1,
                Err(error) if error.kind() == Kind::NoSpace => self.claims.push((claim, put_ns)),
                Err(_) => {}
            }
            self.put_off(removed)?;
        }
        Ok(())
    }
}

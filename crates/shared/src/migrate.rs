// SPDX-License-Identifier: Apache-2.0
//! Migration: moves segments to the owners of their slices, after load was balanced (`balance.rs`)
//! or a job continued with other servers. All ranks take part, and make no look-ups meanwhile.
//!
//! 1. Each server syncs the segments whose slices it no longer owns and copies them to the new
//!    owners.
//! 2. The new owners sync the copies.
//! 3. The old owners drop the originals, in one commit each.
//!
//! A crash before the end leaves some segments in two parts. Both copies are equal, since no rank
//! writes until all have finished; migrating again removes the duplicates.

use esker_base::Result;
use esker_comm::Rank;
use esker_comm::Transport;
use esker_comm::collective::Reduction;
use esker_extent::{SegmentRun, TreeExtents};
use esker_fs::session::Session;
use esker_table::tree::Tree;

use crate::job::SharedJob;
use crate::slices::SliceMap;

impl<T: Transport> SharedJob<T> {
    /// Migrates segments to their owners, if there are any to move. Collective.
    pub(crate) fn migrate_segments(&mut self) -> Result<()> {
        let me = self.segments.rank();
        let strays = self.strays(me);
        let StraySegments { own, inherited } = self.segments.agree(strays)?;
        let any = u64::from(!own.is_empty() || !inherited.is_empty());
        let any = self.segments.collectives().all_reduce_u64(Rank(0), any, Reduction::Or)?;
        if any == 0 {
            return Ok(());
        }
        let index = self.index.clone();
        let giver = index.as_ref().filter(|_| !own.is_empty());
        let flushed = giver.map_or(Ok(()), |index| tree(index).flush());
        self.segments.agree(flushed)?;
        let put = self.segments.put_runs(&[&own[..], &inherited].concat());
        let put = put.and_then(|put| self.segments.wait(put));
        self.segments.agree(put)?;
        let flushed = index.as_ref().map_or(Ok(()), |index| tree(index).flush());
        // No rank drops its originals before all copies are durable.
        self.segments.agree(flushed)?;
        let removed = self.remove_strays(me, !own.is_empty());
        // The migration itself is not load.
        let _ = self.segments.exchange().server.take_load();
        self.segments.agree(removed)
    }

    fn strays(&self, me: Rank) -> Result<StraySegments> {
        let map = self.segments.map();
        let mut strays = StraySegments::default();
        if let Some(index) = &self.index {
            strays.own = strays_of(extents(index), map, Some(me))?;
        }
        for session in self.inherited_indexes() {
            strays.inherited.extend(strays_of(extents(session), map, None)?);
        }
        Ok(strays)
    }

    fn remove_strays(&self, me: Rank, has_own: bool) -> Result<()> {
        let map = self.segments.map();
        if let Some(index) = self.index.as_ref().filter(|_| has_own) {
            extents(index).retain_segments(&mut |run, kept| {
                map.split(run, &mut |owner, part| kept.extend((owner == me).then_some(part)));
            })?;
        }
        for session in self.inherited_indexes() {
            if !extents(session).segment_files()?.is_empty() {
                extents(session).retain_segments(&mut |_, _| {})?;
            }
        }
        Ok(())
    }
}

/// Segments of slices that another rank owns.
#[derive(Debug, Default)]
struct StraySegments {
    /// In this rank's part of the index.
    own: Vec<SegmentRun>,
    /// In parts that this rank has inherited.
    inherited: Vec<SegmentRun>,
}

pub(crate) fn tree(session: &Session) -> &Tree {
    session.namespace().layers().writer().expect("a session writes")
}

pub(crate) fn extents(session: &Session) -> TreeExtents<'_> {
    TreeExtents::of(tree(session))
}

/// The segments in `extents` whose slices `owner` does not own.
fn strays_of(extents: TreeExtents, map: &SliceMap, owner: Option<Rank>) -> Result<Vec<SegmentRun>> {
    let mut strays = Vec::new();
    for file in extents.segment_files()? {
        for run in extents.segment_runs(file)? {
            map.split(&run, &mut |rank, part| strays.extend((Some(rank) != owner).then_some(part)));
        }
    }
    Ok(strays)
}

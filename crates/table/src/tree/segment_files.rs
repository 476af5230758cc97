//! Whole files of segments: which ones a tree has, all segments of one, and giving some up.
//!
//! A tree that serves a share of files hands parts of that share to others, and then shows them no
//! more: [`Tree::retain_segments`] is one commit, so a crash leaves either all or none of it done.

use std::collections::BTreeSet;
use std::ops::Range;

use esker_base::Result;

use super::segments::{Only, push_runs};
use super::{FlushState, Inner, Tree};
use crate::manifest::TableRef;
use crate::segment::{
    Lattice, Nest, Overlay, RUN, SEGMENT, Segment, SegmentRun, SegmentSource, SegmentTables,
};

impl Tree {
    /// The files that have segments here, holes counted, in order. Cost: a block read for each file
    /// and run of tables.
    ///
    /// # Errors
    /// `Corrupt`, and what the store reports.
    pub fn segment_files(&self) -> Result<Vec<u128>> {
        let inner = &*self.inner;
        let mut files = BTreeSet::new();
        files.extend(inner.segments.lock().buffer.files());
        // Loaded after the active memtable was read: what was frozen since is in it.
        let version = inner.version.load();
        for memtable in &version.frozen {
            files.extend(memtable.segments().files());
        }
        for source in version.segments.sources() {
            files.extend(source.files()?);
        }
        Ok(files.into_iter().collect())
    }

    /// All segments of `file`, holes among them, as runs of which none overlap; in no order. Cost:
    /// as a read of the whole file's segments; memory for each segment where several sources have
    /// some, or they are no runs.
    ///
    /// # Errors
    /// As [`Tree::segment_files`].
    pub fn segment_runs(&self, file: u128) -> Result<Vec<SegmentRun>> {
        let lattice = match self.only_source(file)? {
            Only::None => return Ok(Vec::new()),
            Only::Lattice(lattice) => Some(lattice),
            Only::Source(SegmentSource::Runs(runs)) => Some(runs.lattice(file)?),
            Only::Source(SegmentSource::Rows(_)) | Only::Several => None,
        };
        if let Some(lattice) = lattice {
            return Ok(runs_of(&lattice));
        }
        let pieces = self.segments_within(file, 0..u64::MAX)?;
        Ok(runs_among(&pieces))
    }

    /// What `range` of `file` is, in order: segments cut to the range, holes among them; nothing
    /// where nothing was ever put. Cost: as [`Tree::read_segments`].
    ///
    /// # Errors
    /// As [`Tree::segment_files`].
    pub fn segments_within(&self, file: u128, range: Range<u64>) -> Result<Vec<Segment>> {
        let mut overlay = Overlay::new(file, range);
        self.read_segments(&mut overlay)?;
        Ok(overlay.pieces().to_vec())
    }

    /// Flushes, and goes on with only the segments that `keep` passes on: it is given runs and adds
    /// to its list what stays of them, which must not overlap what stays of others. Nothing may be
    /// put meanwhile. Cost: a flush, a read of all segments, a table of what stays, a commit.
    ///
    /// # Errors
    /// As [`Tree::segment_files`].
    pub fn retain_segments(
        &self,
        keep: &mut dyn FnMut(&SegmentRun, &mut Vec<SegmentRun>),
    ) -> Result<()> {
        self.flush()?;
        let mut kept = Vec::new();
        for file in self.segment_files()? {
            let mut of_file = Vec::new();
            self.segment_runs(file)?.iter().for_each(|run| keep(run, &mut of_file));
            kept.push(of_file);
        }
        let inner = &*self.inner;
        inner.attempt(&mut inner.flush.lock(), |state| inner.replace_segments(state, &kept))
    }
}

impl Inner {
    /// Puts tables of `files`, of each its segments in order of files, in place of all there are.
    fn replace_segments(&self, state: &mut FlushState, files: &[Vec<SegmentRun>]) -> Result<()> {
        let version = self.version.load_full();
        let (mut lattices, mut singles) = (Vec::new(), Vec::new());
        for runs in files {
            match Lattice::of_apart(runs) {
                Some(lattice) => lattices.push(lattice),
                None => singles.push(runs),
            }
        }
        let rows = self.write_run(state, &SEGMENT, |writer| {
            for runs in singles {
                let mut all: Vec<Segment> = runs.iter().flat_map(SegmentRun::segments).collect();
                all.sort_unstable_by_key(|segment| segment.offset);
                all.iter().try_for_each(|segment| writer.push(&segment.row()))?;
            }
            Ok(())
        })?;
        let runs = self.write_run(state, &RUN, |writer| {
            lattices.iter().try_for_each(|lattice| push_runs(lattice, writer))
        })?;
        let sources = version.segments.sources();
        let gone: Vec<(u16, u64)> =
            sources.iter().map(|source| (source.schema().id, source.number())).collect();
        let tables: Vec<TableRef> = runs.into_iter().chain(rows).collect();
        let fresh = SegmentTables::new(&tables, &self.source);
        self.replace(state, &gone, &tables, |version| version.segments = fresh.clone())
    }
}

/// `pieces` of one file, which do not overlap, as runs where they are any; in no order.
#[must_use]
pub fn runs_among(pieces: &[Segment]) -> Vec<SegmentRun> {
    let ones = pieces.iter().map(|piece| SegmentRun::one(*piece));
    let nests: Vec<Nest> = ones.clone().map(Nest::one).collect();
    Lattice::of_disjoint(&nests).map_or_else(|| ones.collect(), |lattice| runs_of(&lattice))
}

fn runs_of(lattice: &Lattice) -> Vec<SegmentRun> {
    lattice.runs().chain(lattice.singles().iter().map(SegmentRun::one)).collect()
}

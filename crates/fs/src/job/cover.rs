// SPDX-License-Identifier: Apache-2.0
//! Covers: the content of files in the job's set that overrides any segments of the parts.

use std::ops::Range;

use esker_base::Result;
use esker_extent::{Segment, SegmentOverlay, SegmentTables};
use esker_table::manifest::Manifest;
use esker_table::run_writer::RunWriter;

use super::WINDOW_BYTES;
use super::resolve::JobLayers;
use crate::inode::{INODE, Inode};
use crate::stack::layers::load_stack;

/// Content of a file in the job's set.
#[derive(Clone, Debug)]
pub(super) struct FileCover {
    /// The file.
    pub(super) file: u128,
    /// Its size in bytes.
    pub(super) size: u64,
    /// The content.
    pub(super) source: CoverSource,
}

/// Content of a file as some layers have it.
#[derive(Clone, Debug)]
pub(super) enum CoverSource {
    /// As a part has it, under the identity `stored`.
    Part { part: usize, stored: u128 },
    /// As the bases of all parts show it.
    Bases(Box<Inode>),
}

impl FileCover {
    /// Writes segments for all of the file's content, with holes in between.
    pub(super) fn write(&self, layers: &JobLayers, out: &mut RunWriter) -> Result<()> {
        let sources = match &self.source {
            CoverSource::Part { part, .. } => sources_of_part(*part, layers)?,
            CoverSource::Bases(_) => Vec::new(),
        };
        let segments = |range: Range<u64>| match &self.source {
            CoverSource::Part { stored, .. } => {
                let mut overlay = SegmentOverlay::new(*stored, range);
                sources.iter().try_for_each(|source| overlay.add_tables(source))?;
                Ok(overlay)
            }
            CoverSource::Bases(inode) => layers.below.segments(inode, range),
        };
        let hole = |at, end| Segment::hole(self.file, at, end - at);
        let mut at = 0;
        for start in (0..self.size).step_by(WINDOW_BYTES) {
            let end = self.size.min(start.saturating_add(WINDOW_BYTES as u64));
            let overlay = segments(start..end)?;
            for piece in overlay.pieces().iter().filter(|piece| piece.place.is_some()) {
                if at < piece.offset {
                    out.push(&hole(at, piece.offset).row())?;
                }
                out.push(&Segment { file: self.file, ..*piece }.row())?;
                at = piece.end();
            }
        }
        out.push(&hole(at, u64::MAX).row())
    }
}

/// Returns the tables with the content of a part's files: its own, those that ranks wrote together,
/// and those of its bases.
fn sources_of_part(part: usize, layers: &JobLayers) -> Result<Vec<SegmentTables>> {
    let own = &layers.manifests[part];
    let is_nameless = |part: &&Manifest| part.tables.iter().all(|table| table.schema != INODE.id);
    // Parts without names have segments of files that ranks write together.
    let together = layers.manifests.iter().filter(is_nameless);
    let mut sources: Vec<SegmentTables> = std::iter::once(own)
        .chain(together)
        .map(|part| SegmentTables::new(&part.tables, layers.source))
        .collect();
    let stack = load_stack(layers.source, &own.bases)?;
    sources.extend(stack.iter().map(|base| base.segments.clone()));
    Ok(sources)
}

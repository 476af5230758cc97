// SPDX-License-Identifier: Apache-2.0
//! Join: makes one trace of several, such as those that each node of a job has recorded.
//!
//! Ranks keep their numbers; where several traces have the same one, the first that transfers bytes does, and the
//! others get numbers after all. Times count from the beginning of the first trace, by the clocks of
//! the nodes, if all traces have it.

use std::collections::HashSet;
use std::io::Write;

use esker_base::Result;

use super::file_selection::FileSelection;
use super::rank_numbers::number_ranks;
use super::{
    ColumnSelection, ImportSummary, TraceOrigin, TraceReader, TraceRecord, TraceSource, TraceWriter,
};

/// Writes the records of `traces` on files at and below `paths`, or on all if there are none, to `output` as one trace.
///
/// # Errors
/// `Corrupt` for a trace that is none; `TooLarge` for more paths than a trace holds; as the output answers.
pub fn join_traces<S: TraceSource, W: Write>(
    traces: &[TraceReader<S>],
    paths: &[Vec<u8>],
    output: W,
) -> Result<(W, ImportSummary)> {
    let epochs = || traces.iter().map(|trace| trace.origin().epoch_ns);
    let first_ns = epochs().min().unwrap_or(0);
    let origin = traces.first().map(|trace| trace.origin().clone()).unwrap_or_default();
    let mut writer =
        TraceWriter::new(output, "the joined trace", TraceOrigin { epoch_ns: first_ns, ..origin })?;
    let ranks = find_ranks(traces, paths)?;
    let numbers = number_ranks(|(_, rank)| Some(rank), &ranks.transferring, &ranks.all);
    let mut selection = FileSelection::new(paths);
    for (index, trace) in traces.iter().enumerate() {
        // A trace of an unknown beginning begins with the others.
        let shift_ns = if first_ns == 0 { 0 } else { trace.origin().epoch_ns - first_ns };
        let mut files = vec![None; trace.paths()];
        trace.for_each(ColumnSelection::All, |batch| {
            for record in batch.records() {
                if !takes(&mut selection, paths, trace.path(record.file)) {
                    continue;
                }
                let file = record.file.0 as usize;
                let joined = match files[file] {
                    Some(joined) => joined,
                    None => *files[file].insert(writer.file_of_text(trace.path(record.file))?),
                };
                writer.push(&TraceRecord {
                    rank: numbers[&(index, record.rank)],
                    file: joined,
                    begin_ns: record.begin_ns.saturating_add(shift_ns),
                    end_ns: record.end_ns.saturating_add(shift_ns),
                    ..record
                })?;
            }
            Ok(())
        })?;
    }
    let summary = ImportSummary {
        records: writer.rows(),
        ranks: ranks.all.len() as u32,
        transferring_ranks: ranks.transferring.len() as u32,
        left_out: selection.left_out(),
        left_out_directories: selection.directories(),
        incomplete: 0,
    };
    Ok((writer.finish()?, summary))
}

/// The ranks of traces, by the index of the trace and their number there.
#[derive(Default)]
struct TraceRanks {
    all: Vec<(usize, u32)>,
    transferring: Vec<(usize, u32)>,
}

/// True for records that are kept: all without `paths`, and calls without a file, such as barriers.
fn takes(selection: &mut FileSelection<'_>, paths: &[Vec<u8>], path: &str) -> bool {
    paths.is_empty() || path.is_empty() || selection.takes(path.as_bytes())
}

fn find_ranks<S: TraceSource>(traces: &[TraceReader<S>], paths: &[Vec<u8>]) -> Result<TraceRanks> {
    let mut found = TraceRanks::default();
    let mut selection = FileSelection::new(paths);
    let (mut known, mut known_to_transfer) = (HashSet::new(), HashSet::new());
    for (index, trace) in traces.iter().enumerate() {
        trace.for_each(ColumnSelection::Accesses, |batch| {
            for record in batch.records() {
                if !takes(&mut selection, paths, trace.path(record.file)) {
                    continue;
                }
                let rank = (index, record.rank);
                if known.insert(rank) {
                    found.all.push(rank);
                }
                let transfers = record.operation.is_transfer() && record.bytes_moved() > 0;
                if transfers && known_to_transfer.insert(rank) {
                    found.transferring.push(rank);
                }
            }
            Ok(())
        })?;
    }
    Ok(found)
}

// SPDX-License-Identifier: Apache-2.0
//! Recorder: imports what `recorder2text` or `recorder2parquet` wrote, one file for each rank, as a
//! trace.
//!
//! `text` and `parquet` read the calls, `rank_calls` keeps positions and makes operations of them,
//! and `rank_records` records of the operations. Calls of POSIX and of streams become records, and
//! `MPI_Barrier` of all ranks a barrier; MPI-IO and HDF5 are left out, since the calls of POSIX that
//! they make are there, too. Version 3 keeps neither results nor descriptors: every call counts as
//! successful, and descriptors of one path share a position. Version 2, of which there is text only,
//! has descriptors and the results of opens, but prints 0 for reads and writes, and names streams by
//! address: their calls are counted as unknown. In both, reads and writes count as whole, so that a
//! read at the end of a file counts too. Memory: the records of one rank. Source: uiuc-hpc/Recorder,
//! tools/recorder2text.c, tools/recorder2parquet.cpp and lib/recorder-posix.c; Wang et al., Recorder
//! 2.0: Efficient Parallel I/O Tracing and Analysis, 2020.

mod call;
mod parquet;
mod rank_calls;
mod rank_records;
mod text;

use std::collections::HashMap;
use std::io::{BufRead, Write};

use esker_base::Result;

use self::parquet::read_parquet;
use self::rank_records::RankRecords;
use self::text::{parse_line, read_text};
use super::file_selection::FileSelection;
use super::{ImportSummary, TraceOrigin, TraceWriter};
use crate::parquet_table::ParquetTable;

/// An import in progress.
pub struct RecorderImport<'a, W: Write> {
    writer: TraceWriter<W>,
    selection: FileSelection<'a>,
    /// Known sizes of files, of all ranks.
    sizes: HashMap<String, u64>,
    summary: ImportSummary,
}

/// True if `line` is one of Recorder.
#[must_use]
pub fn is_recorder_line(line: &str) -> bool {
    parse_line(line).is_some()
}

impl<'a, W: Write> RecorderImport<'a, W> {
    /// Begins the trace of the job in `object`, of files at and below `paths`, or of all but those
    /// of the system if there are none.
    ///
    /// # Errors
    /// As the output answers.
    pub fn new(output: W, object: &str, paths: &'a [Vec<u8>]) -> Result<Self> {
        let (program, source) = (object.to_owned(), "recorder".to_owned());
        let origin = TraceOrigin { program, source, epoch_ns: 0 };
        Ok(Self {
            writer: TraceWriter::new(output, format!("the trace of {object}"), origin)?,
            selection: FileSelection::new(paths),
            sizes: HashMap::new(),
            summary: ImportSummary::default(),
        })
    }

    /// Adds the text of `rank`; errors name it `object`.
    ///
    /// # Errors
    /// `Corrupt` with line and byte for a text that is not of `recorder2text`; `TooLarge` for more
    /// records than a rank may have; as the input and the output answer.
    pub fn add_text(&mut self, rank: u32, input: impl BufRead, object: &str) -> Result<()> {
        let mut records = self.rank_records(rank, object);
        read_text(input, object, |call, wrong| records.add(call, wrong))?;
        records.finish()
    }

    /// Adds the table of `rank`; errors name it `object`.
    ///
    /// # Errors
    /// `Corrupt` with the row for a table that is not of `recorder2parquet`, or of another rank;
    /// `TooLarge` for more records than a rank may have; as the input and the output answer.
    pub fn add_parquet(&mut self, rank: u32, table: &ParquetTable, object: &str) -> Result<()> {
        let mut records = self.rank_records(rank, object);
        read_parquet(table, rank, object, |call, wrong| records.add(call, wrong))?;
        records.finish()
    }

    fn rank_records<'i>(&'i mut self, rank: u32, object: &'i str) -> RankRecords<'i, 'a, W> {
        let Self { writer, selection, sizes, summary } = self;
        RankRecords::new((rank, object), sizes, writer, selection, summary)
    }

    /// Writes the remaining records, and returns the output.
    ///
    /// # Errors
    /// As the output answers.
    pub fn finish(self) -> Result<(W, ImportSummary)> {
        let summary = ImportSummary {
            records: self.writer.rows(),
            left_out: self.selection.left_out(),
            left_out_directories: self.selection.directories(),
            ..self.summary
        };
        Ok((self.writer.finish()?, summary))
    }
}

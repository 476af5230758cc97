// SPDX-License-Identifier: Apache-2.0
//! Local partition: the part of a rank that receives the messages of other ranks.

use esker_base::{Error, Kind, Result};
use esker_comm::Rank;

use super::directory_options::DirectoryOptions;
use super::values::ValueLog;
use crate::auxiliary::{AuxiliaryBuilder, AuxiliaryEncoding};
use crate::hash::key_hash;
use crate::partition::PartitionWriter;
use crate::record_layout::{RecordLayout, ValueFormat};

/// Memory of a pair in an auxiliary table under construction, its encoding included.
pub(super) const PAIR_MEMORY_BYTES: u64 = 48;

/// The part of a rank that receives the messages of others.
#[derive(Debug)]
pub(super) struct LocalPartition {
    pub(super) writer: PartitionWriter,
    pub(super) values: Option<ValueLog>,
    sources: Option<AuxiliaryBuilder>,
    pairs_max: usize,
    /// Maximum number of pairs that a table has had.
    pub(super) pairs_peak: usize,
    pub(super) key_bytes: Option<usize>,
    format: ValueFormat,
    /// Records received in this epoch, to detect skew.
    pub(super) received: u64,
    row: Vec<u8>,
}

impl LocalPartition {
    pub(super) fn new(
        writer: PartitionWriter,
        values: Option<ValueLog>,
        options: &DirectoryOptions,
        pairs_memory: u64,
    ) -> Self {
        Self {
            writer,
            values,
            sources: encoding_of(options).map(AuxiliaryBuilder::new),
            pairs_max: usize::try_from(pairs_memory / PAIR_MEMORY_BYTES).unwrap_or(usize::MAX),
            pairs_peak: 0,
            key_bytes: key_bytes_of(options.layout),
            format: options.format,
            received: 0,
            row: Vec::new(),
        }
    }

    /// Handles a message from `from`.
    pub(super) fn accept(&mut self, from: Rank, message: &[u8]) -> Result<()> {
        self.received += 1;
        if let Some(sources) = &mut self.sources {
            let hash = message.as_array::<8>().ok_or_else(|| misfit(message))?;
            sources.insert(u64::from_le_bytes(*hash), from.0);
            return if sources.len() >= self.pairs_max { self.end_sources() } else { Ok(()) };
        }
        let (key, value) = match self.key_bytes {
            Some(key_bytes) => message.split_at_checked(key_bytes),
            None => message
                .split_first()
                .and_then(|(&length, rest)| rest.split_at_checked(usize::from(length))),
        }
        .ok_or_else(|| misfit(message))?;
        if self.format == ValueFormat::Pointer {
            self.row.clear();
            self.row.extend_from_slice(&from.0.to_le_bytes());
            self.row.extend_from_slice(value);
            return self.writer.append(key_hash(key), key, &self.row);
        }
        self.writer.append(key_hash(key), key, value)
    }

    pub(super) fn end_sources(&mut self) -> Result<()> {
        if let Some(sources) = self.sources.as_mut().filter(|sources| !sources.is_empty()) {
            self.pairs_peak = self.pairs_peak.max(sources.len());
            let table = sources.finish()?;
            self.writer.add_auxiliary(table);
        }
        Ok(())
    }
}

/// The encoding of keys' sources, for formats in which records stay with their writers.
fn encoding_of(options: &DirectoryOptions) -> Option<AuxiliaryEncoding> {
    match options.format {
        ValueFormat::Lossy => {
            Some(AuxiliaryEncoding::Cuckoo { fingerprint_bits: options.fingerprint_bits })
        }
        ValueFormat::Static => Some(AuxiliaryEncoding::Ribbon),
        _ => None,
    }
}

/// Bytes of every key, if all have the same length.
fn key_bytes_of(layout: RecordLayout) -> Option<usize> {
    match layout {
        RecordLayout::Fixed { key_bytes, .. } => Some(usize::from(key_bytes)),
        RecordLayout::Variable => None,
    }
}

#[cold]
fn misfit(message: &[u8]) -> Error {
    let what =
        format!("received a record of {} bytes, which this directory cannot have", message.len());
    Error::new(Kind::Corrupt, what)
}

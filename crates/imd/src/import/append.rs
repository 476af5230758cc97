// SPDX-License-Identifier: Apache-2.0
//! Append: appends the records of a rank's share of the files, epoch by epoch.

use esker_base::Result;
use esker_comm::Transport;

use super::{DumpLayout, DumpStep};
use crate::write::DirectoryWriter;

/// Appends all records of `steps`, one epoch for each step. With n ranks, each rank appends the
/// records of every n-th file. Collective. Returns the number of records that this rank appended.
///
/// # Errors
/// Those of reading the files, which name file and offset, and those of the directory.
pub fn append_all<T: Transport>(
    imd: &mut DirectoryWriter<T>,
    steps: &[DumpStep],
    layout: &DumpLayout,
) -> Result<u64> {
    let (rank, ranks) = (imd.transport().rank().0, imd.transport().size());
    let mut appended = 0;
    for step in steps {
        for dump in step.of_rank(rank, ranks) {
            dump.records(layout, |key, record| imd.append(key, record))?;
            appended += dump.records;
        }
        imd.epoch_flush_at(step.number)?;
    }
    Ok(appended)
}

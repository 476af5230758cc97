// SPDX-License-Identifier: Apache-2.0
//! Working set: the marker that makes a working set recognizable, reusable and removable.
//!
//! The marker exists before the first object and is removed after the last. While a phase changes
//! objects it says so: a working set whose run was killed can only be removed.

use esker_base::{Error, Kind, Result, shell_word};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::pattern::WorkingSetSize;

const FORMAT: &str = "esker-workbench-set";
const VERSION: u32 = 1;

/// Greatest shift, with which numbers of objects stay far from overflow.
const SHIFT_MAX: u64 = 1 << 59;

/// The command that removes the working set of `target`.
#[must_use]
pub fn cleanup_command(target: &str) -> String {
    format!("esker workbench cleanup {}", shell_word(target.as_bytes()))
}

/// The marker of a working set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSetMarker {
    format: String,
    version: u32,
    /// Its parameters; those of benchmarks may differ from run to run.
    pub size: WorkingSetSize,
    /// Number of the first object of each dataset: the iterations of all benchmark phases so far.
    pub shift: u64,
    /// False while objects are being created and deleted.
    pub is_complete: bool,
}

impl WorkingSetMarker {
    /// The marker of a working set that is being created.
    #[must_use]
    pub fn new(size: WorkingSetSize) -> Self {
        let format = FORMAT.to_owned();
        Self { format, version: VERSION, size, shift: 0, is_complete: false }
    }

    /// Reads the marker of `backend`; `None` if there is no working set.
    ///
    /// # Errors
    /// `Corrupt` if the marker cannot be read; errors of the backend.
    pub fn read(backend: &dyn Backend) -> Result<Option<Self>> {
        let Some(bytes) = backend.read_marker()? else { return Ok(None) };
        let what = || format!("{}: the marker of the working set", backend.target());
        let marker: Self = serde_json::from_slice(&bytes)
            .map_err(|error| Error::new(Kind::Corrupt, what()).with_source(error))?;
        if marker.format != FORMAT || marker.version != VERSION {
            let context = format!("{} is of another version; remove the set with it", what());
            return Err(Error::new(Kind::Invalid, context));
        }
        if marker.shift > SHIFT_MAX {
            return Err(Error::new(Kind::Corrupt, format!("{}: an impossible shift", what())));
        }
        Ok(Some(marker))
    }

    /// Writes the marker.
    ///
    /// # Errors
    /// As [`Backend::write_marker`].
    pub fn write(&self, backend: &dyn Backend) -> Result<()> {
        backend.write_marker(&serde_json::to_vec(self).expect("numbers and words"))
    }

    /// Checks that a run of `size` can use this working set.
    ///
    /// # Errors
    /// `Conflict` if an interrupted run left it; `Invalid` if its parameters differ.
    pub fn check_reuse(&self, target: &str, size: &WorkingSetSize) -> Result<()> {
        let cleanup = format!("remove it with `{}`", cleanup_command(target));
        if !self.is_complete {
            let what = "a run was interrupted, or is still running, and its working set is partial";
            return Err(Error::new(Kind::Conflict, format!("{target}: {what}; {cleanup}")));
        }
        if (WorkingSetSize { iterations: self.size.iterations, ..*size }) != self.size {
            let WorkingSetSize { ranks, datasets, objects, object_bytes, rank_offset, .. } =
                self.size;
            let what = format!(
                "{target} has a working set of other parameters: use -N {ranks} -D {datasets} \
                 -P {objects} -S {object_bytes} -O {rank_offset}, or {cleanup}"
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(())
    }
}

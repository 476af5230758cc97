// SPDX-License-Identifier: Apache-2.0
//! Working set: the marker that makes a working set recognizable, reusable and removable.
//!
//! The marker exists before the first object and is removed after the last. While a phase changes
//! objects, the marker says so: a working set whose run was killed can only be removed.

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

/// The fields of a marker of any version.
#[derive(Deserialize)]
struct MarkerOwner {
    format: String,
    #[serde(default)]
    kind: String,
}

/// Checks that `bytes` are a marker of this program, for the kind of service that `backend` is.
fn check_owner(backend: &dyn Backend, bytes: &[u8]) -> Result<()> {
    let target = backend.target();
    let owner = serde_json::from_slice::<MarkerOwner>(bytes).ok();
    let Some(owner) = owner.filter(|owner| owner.format == FORMAT) else {
        let what = "what is there is no marker of a working set, and stays; use another target";
        return Err(Error::new(Kind::Corrupt, format!("{target}: {what}")));
    };
    if !owner.kind.is_empty() && owner.kind != backend.working_set_kind() {
        let what = format!("the working set is of another kind of target: {}", owner.kind);
        return Err(Error::new(Kind::Invalid, format!("{target}: {what}")));
    }
    Ok(())
}

/// The marker of a working set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSetMarker {
    format: String,
    version: u32,
    /// The kind of service that made it; empty in markers of earlier programs.
    #[serde(default)]
    kind: String,
    /// Its parameters; those of benchmarks may differ from run to run.
    pub size: WorkingSetSize,
    /// Number of the first object of each dataset: the iterations of all benchmark phases so far.
    pub shift: u64,
    /// False while objects are being created and deleted.
    pub is_complete: bool,
}

impl WorkingSetMarker {
    /// The marker of a working set that a service of `kind` is creating.
    #[must_use]
    pub fn new(kind: &str, size: WorkingSetSize) -> Self {
        let (format, kind) = (FORMAT.to_owned(), kind.to_owned());
        Self { format, version: VERSION, kind, size, shift: 0, is_complete: false }
    }

    /// Reads the marker of `backend`; `None` if there is no working set.
    ///
    /// # Errors
    /// `Corrupt` if the marker cannot be read; errors of the backend.
    pub fn read(backend: &dyn Backend) -> Result<Option<Self>> {
        let Some(bytes) = backend.read_marker()? else { return Ok(None) };
        check_owner(backend, &bytes)?;
        let what = || format!("{}: the marker of the working set", backend.target());
        let marker: Self = serde_json::from_slice(&bytes)
            .map_err(|error| Error::new(Kind::Corrupt, what()).with_source(error))?;
        if marker.version != VERSION {
            let context = format!("{} is of another version; remove the set with it", what());
            return Err(Error::new(Kind::Invalid, context));
        }
        if marker.shift > SHIFT_MAX {
            return Err(Error::new(Kind::Corrupt, format!("{}: an impossible shift", what())));
        }
        Ok(Some(marker))
    }

    /// Checks that the working set of `backend`, if there is one, is of this program and of its
    /// kind, so that it may be removed.
    ///
    /// # Errors
    /// `Corrupt` if something else is in the marker's place; `Invalid` for another kind of target.
    pub fn check_removable(backend: &dyn Backend) -> Result<()> {
        backend.read_marker()?.map_or(Ok(()), |bytes| check_owner(backend, &bytes))
    }

    /// Writes the marker, in place of another one unless `is_new`.
    ///
    /// # Errors
    /// As [`Backend::create_marker`] and [`Backend::write_marker`].
    pub fn write(&self, backend: &dyn Backend, is_new: bool) -> Result<()> {
        let marker = serde_json::to_vec(self).expect("numbers and words");
        if is_new { backend.create_marker(&marker) } else { backend.write_marker(&marker) }
    }

    /// True for bytes with which a marker may begin, as a crash may leave them.
    #[must_use]
    pub fn may_begin_with(bytes: &[u8]) -> bool {
        let begin = format!("{{\"format\":\"{FORMAT}\"");
        begin.as_bytes().starts_with(bytes) || bytes.starts_with(begin.as_bytes())
    }

    /// Checks that a run of `size` can use this working set.
    ///
    /// # Errors
    /// `Conflict` if an interrupted run left it; `Invalid` if its parameters differ.
    pub fn check_reuse(&self, target: &str, size: &WorkingSetSize) -> Result<()> {
        let cleanup = format!("remove it with `{}`", cleanup_command(target));
        if !self.is_complete {
            let what = "a run was interrupted or is still running, or a change failed, and the working set is partial";
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

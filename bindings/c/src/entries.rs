// SPDX-License-Identifier: Apache-2.0
//! Entries: listings of directories, in batches.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use esker::{Dir, DirEntry, Error, Result};
use parking_lot::Mutex;

use crate::arguments::{path, put_new, slice_mut};
use crate::attributes::CStat;
use crate::boundary::{call, count};
use crate::handle::{Handle, handle_kind};

/// A listing of a directory.
pub struct EntryCursor {
    entries: Mutex<EntryBatch>,
}

/// Names and attributes that are still to come.
type RestOfEntries = Box<dyn Iterator<Item = Result<(CString, CStat)>> + Send>;

struct EntryBatch {
    rest: RestOfEntries,
    /// An error that followed the entries of the last batch.
    failure: Option<Error>,
    /// Names to which the entries of the last batch refer.
    lent: Vec<CString>,
}

handle_kind!(EntryCursor, 6, "entries");

/// `esker_entry`.
#[repr(C)]
pub struct CEntry {
    pub(crate) name: *const c_char,
    pub(crate) stat: CStat,
}

impl EntryBatch {
    fn fill(&mut self, buffer: &mut [CEntry]) -> Result<u64> {
        self.lent.clear();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut filled = 0;
        for target in buffer {
            match self.rest.next() {
                Some(Ok((name, stat))) => {
                    *target = CEntry { name: name.as_ptr(), stat };
                    self.lent.push(name);
                    filled += 1;
                }
                Some(Err(error)) if filled == 0 => return Err(error),
                Some(Err(error)) => {
                    self.failure = Some(error);
                    break;
                }
                None => break,
            }
        }
        Ok(filled)
    }
}

impl EntryCursor {
    /// Lists `entries`.
    pub fn over(entries: impl Iterator<Item = Result<(CString, CStat)>> + Send + 'static) -> Self {
        let batch = EntryBatch { rest: Box::new(entries), failure: None, lent: Vec::new() };
        Self { entries: Mutex::new(batch) }
    }
}

fn encode(entry: Result<DirEntry>) -> Result<(CString, CStat)> {
    let entry = entry?;
    // Names have no zero bytes.
    let name = CString::new(entry.name().as_bytes()).unwrap_or_default();
    Ok((name, CStat::new(entry.metadata())?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_entries_open(
    at: Handle<Dir>,
    name: *const c_char,
    after: *const c_char,
    entries: *mut Handle<EntryCursor>,
) -> c_int {
    call(|| unsafe {
        put_new(entries, || {
            let name = path(name, "path")?;
            let dir = at.with(|at| at.open_dir(name))?;
            let rest = if after.is_null() {
                dir.entries()?
            } else {
                let after: &OsStr = path(after, "after")?.as_os_str();
                dir.entries_after(after)
            };
            Ok(EntryCursor::over(rest.map(encode)))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_entries_next(
    entries: Handle<EntryCursor>,
    buffer: *mut CEntry,
    buffer_count: usize,
) -> i64 {
    count(|| unsafe {
        let buffer = slice_mut(buffer, buffer_count, "buffer")?;
        entries.with(|cursor| cursor.entries.lock().fill(buffer))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_entries_close(entries: Handle<EntryCursor>) -> c_int {
    call(|| entries.take().map(drop))
}

// SPDX-License-Identifier: Apache-2.0
//! Published names: listing, giving, renaming and deleting them.

use std::ffi::{CString, c_char, c_int};

use esker::{PublishedName, Repository};
use parking_lot::Mutex;

use crate::arguments::{put_new, slice_mut, text};
use crate::boundary::{call, count};
use crate::handle::{Handle, handle_kind};
use crate::repository::ID_BYTES;

/// The names of a repository, as they were when they were listed.
pub struct NameCursor {
    names: Mutex<NameBatch>,
}

struct NameBatch {
    rest: std::vec::IntoIter<PublishedName>,
    /// Texts to which the entries of the last batch refer.
    lent: Vec<CString>,
}

handle_kind!(NameCursor, 2, "names");

/// `esker_name`.
#[repr(C)]
pub struct CName {
    pub(crate) name: *const c_char,
    pub(crate) id: [c_char; ID_BYTES],
    pub(crate) published_ns: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_names_open(
    repository: Handle<Repository>,
    names: *mut Handle<NameCursor>,
) -> c_int {
    call(|| unsafe {
        put_new(names, || {
            let rest = repository.with(Repository::names)?.into_iter();
            Ok(NameCursor { names: Mutex::new(NameBatch { rest, lent: Vec::new() }) })
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_names_next(
    names: Handle<NameCursor>,
    buffer: *mut CName,
    buffer_count: usize,
) -> i64 {
    count(|| unsafe {
        let buffer = slice_mut(buffer, buffer_count, "buffer")?;
        names.with(|cursor| {
            let mut batch = cursor.names.lock();
            batch.lent.clear();
            let mut filled = 0;
            for entry in buffer {
                let Some(next) = batch.rest.next() else { break };
                let name = CString::new(next.name).unwrap_or_default();
                let mut id = [0; ID_BYTES];
                for (target, byte) in id.iter_mut().zip(next.set.to_string().bytes()) {
                    *target = byte as c_char;
                }
                *entry = CName { name: name.as_ptr(), id, published_ns: next.published_ns };
                batch.lent.push(name);
                filled += 1;
            }
            Ok(filled)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_names_close(names: Handle<NameCursor>) -> c_int {
    call(|| names.take().map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_name_publish(
    repository: Handle<Repository>,
    snapshot: *const c_char,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (snapshot, name) = (text(snapshot, "snapshot")?, text(name, "name")?);
        repository.with(|repository| repository.publish(repository.resolve(snapshot)?, name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_name_rename(
    repository: Handle<Repository>,
    old: *const c_char,
    new: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (old, new) = (text(old, "old")?, text(new, "new")?);
        repository.with(|repository| repository.rename(old, new))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_name_delete(
    repository: Handle<Repository>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = text(name, "name")?;
        repository.with(|repository| repository.delete(name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_name_undelete(
    repository: Handle<Repository>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = text(name, "name")?;
        repository.with(|repository| repository.undelete(name)).map(drop)
    })
}

// SPDX-License-Identifier: Apache-2.0
//! Live namespaces: trees that many clients change at once, through a server.

use std::ffi::{CString, c_char, c_int, c_void};
use std::time::Duration;

use esker::{LiveNamespace, Repository, Result, Session};

use crate::arguments::{
    bytes, bytes_mut, invalid, path, put, put_new, slice, slice_mut, text, texts,
};
use crate::attributes::{CStat, NOFOLLOW};
use crate::boundary::{call, count};
use crate::bulk::keep;
use crate::dir::copy_out;
use crate::entries::EntryCursor;
use crate::handle::{Handle, handle_kind};
use crate::repository::{IdText, put_set};

handle_kind!(LiveNamespace, 14, "live namespace");

/// Names in a directory.
unsafe fn names<'a>(start: *const *const c_char, count: usize) -> Result<Vec<&'a [u8]>> {
    // SAFETY: as the caller promises.
    unsafe {
        let pointers = slice(start, count, "names")?;
        let name = |pointer: &*const c_char| {
            path(*pointer, "name").map(|name| name.as_os_str().as_encoded_bytes())
        };
        pointers.iter().map(name).collect()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_create(
    repository: Handle<Repository>,
    name: *const c_char,
    bases: *const *const c_char,
    bases_count: usize,
) -> c_int {
    call(|| unsafe {
        let (name, bases) = (text(name, "name")?, texts(bases, bases_count, "bases")?);
        repository.with(|repository| repository.create_live(name, bases))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_open(
    repository: Handle<Repository>,
    name: *const c_char,
    live: *mut Handle<LiveNamespace>,
) -> c_int {
    call(|| unsafe {
        put_new(live, || {
            let name = text(name, "name")?;
            repository.with(|repository| repository.live(name))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_open_within(
    repository: Handle<Repository>,
    name: *const c_char,
    patience_ms: u64,
    live: *mut Handle<LiveNamespace>,
) -> c_int {
    call(|| unsafe {
        put_new(live, || {
            let (name, patience) = (text(name, "name")?, Duration::from_millis(patience_ms));
            repository.with(|repository| repository.live_within(name, patience))
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_live_close(live: Handle<LiveNamespace>) -> c_int {
    call(|| live.take().map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_mkdir(
    live: Handle<LiveNamespace>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        live.with(|live| live.create_dir(name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_mkdir_all(
    live: Handle<LiveNamespace>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        live.with(|live| live.create_dir_all(name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_create_many(
    live: Handle<LiveNamespace>,
    dir: *const c_char,
    names_start: *const *const c_char,
    names_count: usize,
    results: *mut c_int,
) -> i64 {
    count(|| unsafe {
        let (dir, names) = (path(dir, "dir")?, names(names_start, names_count)?);
        let results = slice_mut(results, names_count, "results")?;
        let outcomes = live.with(|live| live.create_many(dir, &names))?;
        let mut done = 0;
        for (outcome, result) in outcomes.into_iter().zip(results) {
            let mut kept = 0;
            done += keep(&mut kept, outcome.map(|()| 0));
            *result = kept as c_int;
        }
        Ok(done)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_stat(
    live: Handle<LiveNamespace>,
    name: *const c_char,
    flags: c_int,
    stat: *mut CStat,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        let found = live.with(|live| match flags {
            0 => live.metadata(name),
            NOFOLLOW => live.symlink_metadata(name),
            _ => Err(invalid(format!("there are no flags {flags:#x}"))),
        })?;
        put(stat, CStat::of_live(&found), "stat")
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_stat_many(
    live: Handle<LiveNamespace>,
    dir: *const c_char,
    names_start: *const *const c_char,
    names_count: usize,
    stats: *mut CStat,
    results: *mut c_int,
) -> i64 {
    count(|| unsafe {
        let (dir, names) = (path(dir, "dir")?, names(names_start, names_count)?);
        let stats = slice_mut(stats, names_count, "stats")?;
        let results = slice_mut(results, names_count, "results")?;
        let found = live.with(|live| live.metadata_many(dir, &names))?;
        let mut done = 0;
        for ((outcome, stat), result) in found.into_iter().zip(stats).zip(results) {
            let mut kept = 0;
            let shown = outcome.map(|attributes| *stat = CStat::of_live(&attributes));
            done += keep(&mut kept, shown.map(|()| 0));
            *result = kept as c_int;
        }
        Ok(done)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_read_file(
    live: Handle<LiveNamespace>,
    name: *const c_char,
    buffer: *mut c_void,
    buffer_bytes: usize,
) -> i64 {
    count(|| unsafe {
        let name = path(name, "path")?;
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        Ok(copy_out(&live.with(|live| live.read(name))?, buffer))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_write_file(
    live: Handle<LiveNamespace>,
    name: *const c_char,
    content: *const c_void,
    content_bytes: usize,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        let content = bytes(content, content_bytes, "content")?;
        live.with(|live| live.write(name, content))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_entries_open(
    live: Handle<LiveNamespace>,
    name: *const c_char,
    entries: *mut Handle<EntryCursor>,
) -> c_int {
    call(|| unsafe {
        put_new(entries, || {
            let name = path(name, "path")?;
            let listed = live.with(|live| live.entries(name))?;
            Ok(EntryCursor::over(listed.into_iter().map(|entry| {
                // Names have no zero bytes.
                let name = CString::new(entry.name).unwrap_or_default();
                Ok((name, CStat::of_live(&entry.attributes)))
            })))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_rename(
    live: Handle<LiveNamespace>,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (from, to) = (path(from, "from")?, path(to, "to")?);
        live.with(|live| live.rename(from, to))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_unlink(
    live: Handle<LiveNamespace>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        live.with(|live| live.remove_file(name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_rmdir(
    live: Handle<LiveNamespace>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        live.with(|live| live.remove_dir(name))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_live_sync(live: Handle<LiveNamespace>) -> c_int {
    call(|| live.with(LiveNamespace::sync))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_snapshot(
    live: Handle<LiveNamespace>,
    name: *const c_char,
    id: *mut IdText,
) -> c_int {
    call(|| unsafe {
        let name = text(name, "name")?;
        put_set(id, live.with(|live| live.snapshot(name))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_insert(
    live: Handle<LiveNamespace>,
    session: Handle<Session>,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (from, to) = (path(from, "from")?, path(to, "to")?);
        live.with(|live| session.with(|session| live.insert(session, from, to)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_live_insert_snapshot(
    live: Handle<LiveNamespace>,
    snapshot: *const c_char,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call(|| unsafe {
        let (snapshot, from, to) =
            (text(snapshot, "snapshot")?, path(from, "from")?, path(to, "to")?);
        live.with(|live| live.insert_snapshot(snapshot, from, to))
    })
}

// SPDX-License-Identifier: Apache-2.0
//! Repositories: opening, squashing, collection of garbage, verification.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use esker::{GcOptions, Repository, RepositoryOptions, SetId, Severity, VerifyOptions};

use crate::arguments::{put, put_new, put_optional, put_text, text, texts};
use crate::boundary::call;
use crate::handle::{Handle, handle_kind};
use crate::options::{COptions, read_options};

handle_kind!(Repository, 1, "repository");

/// `ESKER_ID_BYTES`: the 32 digits of an id and a zero byte.
pub const ID_BYTES: usize = 33;

/// An id as text in C.
pub type IdText = [c_char; ID_BYTES];

/// Writes `id` into the caller's buffer, if it gave one.
pub unsafe fn put_set(target: *mut IdText, id: SetId) {
    if !target.is_null() {
        // SAFETY: not null, and as the caller promises; an id has 32 digits.
        let _ = unsafe { put_text(target, &id.to_string(), "id") };
    }
}

/// `esker_repository_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CRepositoryOptions {
    pub(crate) struct_size: usize,
    pub(crate) cache_bytes: u64,
}

// SAFETY: two integers.
unsafe impl COptions for CRepositoryOptions {}

fn options_of(options: &CRepositoryOptions) -> RepositoryOptions {
    match options.cache_bytes {
        0 => RepositoryOptions::new(),
        bytes => RepositoryOptions::new().cache_bytes(bytes),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_repository_create(
    url: *const c_char,
    options: *const CRepositoryOptions,
    repository: *mut Handle<Repository>,
) -> c_int {
    call(|| unsafe {
        put_new(repository, || {
            options_of(&read_options(options, "options")?).create(text(url, "url")?)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_repository_open(
    url: *const c_char,
    options: *const CRepositoryOptions,
    repository: *mut Handle<Repository>,
) -> c_int {
    call(|| unsafe {
        put_new(repository, || {
            options_of(&read_options(options, "options")?).open(text(url, "url")?)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_repository_close(repository: Handle<Repository>) -> c_int {
    call(|| repository.take().map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_repository_resolve(
    repository: Handle<Repository>,
    snapshot: *const c_char,
    id: *mut IdText,
) -> c_int {
    call(|| unsafe {
        let snapshot = text(snapshot, "snapshot")?;
        let set = repository.with(|repository| repository.resolve(snapshot))?;
        put_text(id, &set.to_string(), "id")
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_repository_squash(
    repository: Handle<Repository>,
    snapshots: *const *const c_char,
    snapshots_count: usize,
    name: *const c_char,
    id: *mut IdText,
) -> c_int {
    call(|| unsafe {
        let snapshots = texts(snapshots, snapshots_count, "snapshots")?;
        let name = text(name, "name")?;
        let set = repository.with(|repository| {
            repository.squash(snapshots, name)?;
            repository.resolve(name)
        })?;
        put_set(id, set);
        Ok(())
    })
}

/// `esker_gc_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CGcOptions {
    pub(crate) struct_size: usize,
    pub(crate) grace_seconds: u64,
    pub(crate) without_grace: i32,
    pub(crate) dry_run: i32,
    pub(crate) scan_data: i32,
    pub(crate) reserved: i32,
}

// SAFETY: integers.
unsafe impl COptions for CGcOptions {}

/// `esker_gc_report`.
#[repr(C)]
pub struct CGcReport {
    pub(crate) sets: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) problems: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_repository_collect_garbage(
    repository: Handle<Repository>,
    options: *const CGcOptions,
    report: *mut CGcReport,
) -> c_int {
    call(|| unsafe {
        let given = read_options(options, "options")?;
        let mut options = GcOptions {
            dry_run: given.dry_run != 0,
            scan_data: given.scan_data != 0,
            ..GcOptions::default()
        };
        if given.grace_seconds != 0 || given.without_grace != 0 {
            options.grace = Duration::from_secs(given.grace_seconds);
        }
        let done = repository.with(|repository| repository.collect_garbage(&options))?;
        let counts = CGcReport {
            sets: done.sets.len() as u64,
            objects: done.objects,
            bytes: done.bytes,
            problems: done.problems.len() as u64,
        };
        put_optional(report, counts);
        Ok(())
    })
}

/// `esker_verify_report`.
#[repr(C)]
pub struct CVerifyReport {
    pub(crate) sets: u64,
    pub(crate) records: u64,
    pub(crate) data_bytes: u64,
    pub(crate) errors: u64,
    pub(crate) warnings: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_repository_verify(
    repository: Handle<Repository>,
    reads_data: c_int,
    report: *mut CVerifyReport,
) -> c_int {
    call(|| unsafe {
        let options = VerifyOptions { data: reads_data != 0, ..VerifyOptions::default() };
        let found = repository.with(|repository| repository.verify(&options))?;
        let of = |severity| {
            found.findings.iter().filter(|finding| finding.severity == severity).count() as u64
        };
        let counts = CVerifyReport {
            sets: found.sets as u64,
            records: found.records,
            data_bytes: found.data_bytes,
            errors: of(Severity::Error),
            warnings: of(Severity::Warning),
        };
        put(report, counts, "report")
    })
}

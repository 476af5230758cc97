// SPDX-License-Identifier: Apache-2.0
//! Bulk calls: many files of one directory in one call.
//!
//! Each file is handled as by the call for one file, in the order of the array; every element has a
//! result of its own, and one that fails does not end the call.

use std::ffi::{c_char, c_int, c_void};

use esker::Dir;

use crate::arguments::{bytes, bytes_mut, path, slice, slice_mut};
use crate::attributes::CStat;
use crate::boundary::{count, raise};
use crate::dir::copy_out;
use crate::handle::Handle;

/// `esker_file_content`.
#[repr(C)]
pub struct CFileContent {
    pub(crate) path: *const c_char,
    pub(crate) bytes: *mut c_void,
    pub(crate) bytes_count: usize,
    pub(crate) result: i64,
}

/// Stores the outcome of one element; returns 1 for a success.
pub fn keep(result: &mut i64, outcome: esker::Result<u64>) -> u64 {
    match outcome {
        Ok(size) => {
            *result = i64::try_from(size).unwrap_or(i64::MAX);
            1
        }
        Err(error) => {
            *result = raise(&error);
            0
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_create_many(
    at: Handle<Dir>,
    paths: *const *const c_char,
    paths_count: usize,
    results: *mut c_int,
) -> i64 {
    count(|| unsafe {
        let paths = slice(paths, paths_count, "paths")?;
        let results = slice_mut(results, paths_count, "results")?;
        at.with(|at| {
            let mut done = 0;
            for (name, result) in paths.iter().zip(results) {
                let mut outcome = 0;
                let create = || at.create_empty(path(*name, "path")?).map(|()| 0);
                done += keep(&mut outcome, create());
                *result = outcome as c_int;
            }
            Ok(done)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_stat_many(
    at: Handle<Dir>,
    paths: *const *const c_char,
    paths_count: usize,
    stats: *mut CStat,
    results: *mut c_int,
) -> i64 {
    count(|| unsafe {
        let paths = slice(paths, paths_count, "paths")?;
        let stats = slice_mut(stats, paths_count, "stats")?;
        let results = slice_mut(results, paths_count, "results")?;
        at.with(|at| {
            let mut done = 0;
            for ((name, stat), result) in paths.iter().zip(stats).zip(results) {
                let mut outcome = 0;
                let mut find = || {
                    *stat = CStat::new(&at.metadata(path(*name, "path")?)?)?;
                    Ok(0)
                };
                done += keep(&mut outcome, find());
                *result = outcome as c_int;
            }
            Ok(done)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_read_many(
    at: Handle<Dir>,
    files: *mut CFileContent,
    files_count: usize,
) -> i64 {
    count(|| unsafe {
        let files = slice_mut(files, files_count, "files")?;
        at.with(|at| {
            let mut done = 0;
            for file in files {
                let read = || {
                    let buffer = bytes_mut(file.bytes, file.bytes_count, "bytes")?;
                    Ok(copy_out(&at.read(path(file.path, "path")?)?, buffer))
                };
                done += keep(&mut file.result, read());
            }
            Ok(done)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_write_many(
    at: Handle<Dir>,
    files: *mut CFileContent,
    files_count: usize,
) -> i64 {
    count(|| unsafe {
        let files = slice_mut(files, files_count, "files")?;
        at.with(|at| {
            let mut done = 0;
            for file in files {
                let write = || {
                    let content = bytes(file.bytes, file.bytes_count, "bytes")?;
                    at.write(path(file.path, "path")?, content)?;
                    Ok(file.bytes_count as u64)
                };
                done += keep(&mut file.result, write());
            }
            Ok(done)
        })
    })
}

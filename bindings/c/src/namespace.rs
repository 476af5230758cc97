// SPDX-License-Identifier: Apache-2.0
//! Namespaces: snapshots, or stacks of them, that are open for reading.

use std::ffi::{c_char, c_int};

use esker::{Dir, Namespace, Repository, TransferCounts};

use crate::arguments::{path, put_new, put_optional, texts};
use crate::boundary::call;
use crate::handle::{Handle, handle_kind};

handle_kind!(Namespace, 3, "namespace");

/// `esker_transfer_counts`.
#[repr(C)]
pub struct CTransferCounts {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) symlinks: u64,
    pub(crate) links: u64,
    pub(crate) specials: u64,
    pub(crate) bytes: u64,
    pub(crate) owners_dropped: u64,
    pub(crate) attributes_dropped: u64,
    pub(crate) problems: u64,
}

impl CTransferCounts {
    pub fn new(counts: &TransferCounts) -> Self {
        Self {
            files: counts.files,
            directories: counts.directories,
            symlinks: counts.symlinks,
            links: counts.links,
            specials: counts.specials,
            bytes: counts.bytes,
            owners_dropped: counts.owners_dropped,
            attributes_dropped: counts.attributes_dropped,
            problems: counts.problems,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_namespace_open(
    repository: Handle<Repository>,
    snapshots: *const *const c_char,
    snapshots_count: usize,
    namespace: *mut Handle<Namespace>,
) -> c_int {
    call(|| unsafe {
        put_new(namespace, || {
            let snapshots = texts(snapshots, snapshots_count, "snapshots")?;
            repository.with(|repository| repository.stack(snapshots))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_namespace_root(
    namespace: Handle<Namespace>,
    root: *mut Handle<Dir>,
) -> c_int {
    call(|| unsafe { put_new(root, || namespace.with(|namespace| Ok(namespace.root().clone()))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_namespace_export(
    namespace: Handle<Namespace>,
    source: *const c_char,
    target: *const c_char,
    counts: *mut CTransferCounts,
) -> c_int {
    call(|| unsafe {
        let (source, target) = (path(source, "source")?, path(target, "target")?);
        let done = namespace.with(|namespace| namespace.export(source, target))?;
        put_optional(counts, CTransferCounts::new(&done));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_namespace_check_lease(namespace: Handle<Namespace>) -> c_int {
    call(|| namespace.with(Namespace::check_lease))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_namespace_close(namespace: Handle<Namespace>) -> c_int {
    call(|| namespace.take().map(drop))
}

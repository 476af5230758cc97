// SPDX-License-Identifier: Apache-2.0
//! Shared files: files that all ranks of a job write.
//!
//! A job is locked for each call, its own or one of its files: ranks that are threads have a job
//! each. The lock is only tried: a message function that calls back, and a second thread, get an
//! error. Files keep their job; it is published when none is open.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use esker::{
    Dir, Error, Kind, RemoteReads, Repository, Result, SharedFile, SharedJob, SharedJobBuilder,
};
use parking_lot::Mutex;

use crate::arguments::{
    bytes, bytes_mut, invalid, path, put, put_new, put_optional, slice_mut, text, texts,
};
use crate::boundary::{call, count, raise};
use crate::communicator::{Communicator, LentTransport};
use crate::handle::{Handle, handle_kind};
use crate::job::CJobReport;
use crate::options::{COptions, read_options};
use crate::repository::{IdText, put_set};
use crate::session::durability;

/// A rank of a job that shares files.
pub struct SharedJobRank {
    open: Mutex<Option<OpenJob>>,
}

/// A job, and the number of its open files, which refer to it.
struct OpenJob {
    job: NonNull<SharedJob<LentTransport>>,
    files: usize,
}

// SAFETY: the job is used under the lock of its `SharedJobRank` only.
unsafe impl Send for OpenJob {}

impl Drop for OpenJob {
    fn drop(&mut self) {
        // With files open the job is leaked: they refer to it.
        if self.files == 0 {
            // SAFETY: it comes from a box, and no file refers to it.
            drop(unsafe { Box::from_raw(self.job.as_ptr()) });
        }
    }
}

/// A file of such a job.
pub struct SharedFileRank {
    rank: Arc<SharedJobRank>,
    file: Mutex<OpenFileOfJob>,
}

/// An open file; `None` once it is closed.
struct OpenFileOfJob(Option<SharedFile<'static, LentTransport>>);

// SAFETY: the file is used under the lock of its job only.
unsafe impl Send for OpenFileOfJob {}

handle_kind!(Arc<SharedJobRank>, 12, "shared job");
handle_kind!(SharedFileRank, 13, "shared file");

impl SharedJobRank {
    fn run<R>(&self, act: impl FnOnce(&mut OpenJob) -> Result<R>) -> Result<R> {
        let Some(mut open) = self.open.try_lock() else {
            return Err(invalid("shared job: another call uses it"));
        };
        match open.as_mut() {
            Some(open) => act(open),
            None => Err(Error::new(Kind::Closed, "shared job: it was published or closed")),
        }
    }

    /// Takes the job out, to which no file may refer.
    fn take(&self) -> Result<Box<SharedJob<LentTransport>>> {
        let Some(mut open) = self.open.try_lock() else {
            return Err(invalid("shared job: another call uses it"));
        };
        match open.take() {
            None => Err(Error::new(Kind::Closed, "shared job: it was published or closed")),
            Some(job) if job.files > 0 => {
                let what = format!("shared job: {} of its files are open; close them", job.files);
                *open = Some(job);
                Err(invalid(what))
            }
            Some(job) => {
                let job = std::mem::ManuallyDrop::new(job);
                // SAFETY: it comes from a box, and no file refers to it.
                Ok(unsafe { Box::from_raw(job.job.as_ptr()) })
            }
        }
    }
}

impl OpenJob {
    fn job(&self) -> &SharedJob<LentTransport> {
        // SAFETY: it comes from a box that only `Drop` and `publish` free.
        unsafe { self.job.as_ref() }
    }

    /// The job as its files see it.
    ///
    /// # Safety
    /// An object that refers to the job must be counted as one of its files.
    unsafe fn job_of_files(&self) -> &'static SharedJob<LentTransport> {
        // SAFETY: the box stays while files are open.
        unsafe { self.job.as_ref() }
    }
}

impl Drop for SharedFileRank {
    /// A file that was not closed is dropped under the lock of its job.
    fn drop(&mut self) {
        if let Some(open) = self.rank.open.lock().as_mut() {
            drop(self.file.get_mut().0.take());
            open.files -= 1;
        }
    }
}

impl SharedFileRank {
    fn run<R>(
        &self,
        act: impl FnOnce(&mut SharedFile<'static, LentTransport>) -> Result<R>,
    ) -> Result<R> {
        self.rank.run(|_| match self.file.lock().0.as_mut() {
            Some(file) => act(file),
            None => Err(Error::new(Kind::Closed, "shared file: it was closed")),
        })
    }
}

/// `esker_shared_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSharedOptions {
    pub(crate) struct_size: usize,
    pub(crate) bases: *const *const c_char,
    pub(crate) bases_count: usize,
    pub(crate) durability: c_int,
    pub(crate) take_over: c_int,
    pub(crate) memory_bytes: u64,
    pub(crate) servers_per_node: u32,
    pub(crate) reads_through_ranks: c_int,
}

// SAFETY: integers and pointers, which may be null.
unsafe impl COptions for CSharedOptions {}

unsafe fn builder(mut job: SharedJobBuilder, options: &CSharedOptions) -> Result<SharedJobBuilder> {
    // SAFETY: as the caller promises.
    for base in unsafe { texts(options.bases, options.bases_count, "bases")? } {
        job = job.on(base);
    }
    if let Some(durability) = durability(options.durability)? {
        job = job.durability(durability);
    }
    if options.take_over != 0 {
        job = job.take_over();
    }
    if options.memory_bytes != 0 {
        job = job.memory_bytes(usize::try_from(options.memory_bytes).unwrap_or(usize::MAX));
    }
    if options.servers_per_node != 0 {
        job = job.servers_per_node(options.servers_per_node);
    }
    if options.reads_through_ranks != 0 {
        job = job.remote_reads(RemoteReads::Ranks);
    }
    Ok(job)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_begin(
    comm: Handle<Communicator>,
    repository: Handle<Repository>,
    job: *const c_char,
    options: *const CSharedOptions,
    shared: *mut Handle<Arc<SharedJobRank>>,
) -> c_int {
    call(|| unsafe {
        put_new(shared, || {
            let id = text(job, "job")?.parse()?;
            let options = read_options(options, "options")?;
            let described = repository.with(|repository| Ok(repository.job(id).share_files()))?;
            let described = builder(described, &options)?;
            let begun = Box::new(described.begin(comm.with(Communicator::lend)?)?);
            let job = NonNull::from(Box::leak(begun));
            let open = Mutex::new(Some(OpenJob { job, files: 0 }));
            Ok(Arc::new(SharedJobRank { open }))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_root(
    shared: Handle<Arc<SharedJobRank>>,
    root: *mut Handle<Dir>,
) -> c_int {
    call(|| unsafe {
        put_new(root, || shared.with(|rank| rank.run(|open| Ok(open.job().root().clone()))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_open(
    shared: Handle<Arc<SharedJobRank>>,
    name: *const c_char,
    creates: c_int,
    file: *mut Handle<SharedFileRank>,
) -> c_int {
    call(|| unsafe {
        put_new(file, || {
            let name = path(name, "path")?;
            shared.with(|rank| {
                rank.run(|open| {
                    let job = open.job_of_files();
                    let file = if creates == 0 { job.open(name)? } else { job.create(name)? };
                    let file = Mutex::new(OpenFileOfJob(Some(file)));
                    open.files += 1;
                    Ok(SharedFileRank { rank: Arc::clone(rank), file })
                })
            })
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_unlink(
    shared: Handle<Arc<SharedJobRank>>,
    name: *const c_char,
) -> c_int {
    call(|| unsafe {
        let name = path(name, "path")?;
        shared.with(|rank| rank.run(|open| open.job().remove_file(name)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_pwrite(
    file: Handle<SharedFileRank>,
    content: *const c_void,
    content_bytes: usize,
    offset: u64,
) -> i64 {
    count(|| unsafe {
        let content = bytes(content, content_bytes, "content")?;
        file.with(|file| file.run(|file| file.write_at(content, offset)))?;
        Ok(content_bytes as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_pread(
    file: Handle<SharedFileRank>,
    buffer: *mut c_void,
    buffer_bytes: usize,
    offset: u64,
) -> i64 {
    count(|| unsafe {
        let buffer = bytes_mut(buffer, buffer_bytes, "buffer")?;
        file.with(|file| file.run(|file| read(file, buffer, offset)))
    })
}

fn read(
    file: &mut SharedFile<'static, LentTransport>,
    buffer: &mut [u8],
    offset: u64,
) -> Result<u64> {
    let found = file.read_at(offset, buffer.len())?;
    buffer[..found.len()].copy_from_slice(&found);
    Ok(found.len() as u64)
}

/// `esker_shared_request`.
#[repr(C)]
pub struct CSharedRequest {
    pub(crate) writes: c_int,
    pub(crate) reserved: c_int,
    pub(crate) offset: u64,
    pub(crate) piece_bytes: u64,
    pub(crate) stride: u64,
    pub(crate) pieces: u64,
    pub(crate) buffer: *mut c_void,
    pub(crate) result: i64,
}

impl CSharedRequest {
    /// Reads or writes all pieces; returns the bytes that were moved.
    unsafe fn run(&self, file: &mut SharedFile<'static, LentTransport>) -> Result<u64> {
        let too_large = || invalid("request: its pieces lie beyond the largest offset");
        let piece = usize::try_from(self.piece_bytes).map_err(|_| too_large())?;
        let total = self.piece_bytes.checked_mul(self.pieces).ok_or_else(too_large)?;
        let total = usize::try_from(total).map_err(|_| too_large())?;
        let last = self.pieces.saturating_sub(1).checked_mul(self.stride);
        let last = last.and_then(|last| last.checked_add(self.offset)).ok_or_else(too_large)?;
        last.checked_add(self.piece_bytes).ok_or_else(too_large)?;
        if piece == 0 {
            return Ok(0);
        }
        let mut moved = 0;
        // SAFETY: the caller's buffer has room for all pieces, one after the other.
        let buffer = unsafe { bytes_mut(self.buffer, total, "request.buffer")? };
        for (index, part) in buffer.chunks_exact_mut(piece).enumerate() {
            let offset = self.offset + index as u64 * self.stride;
            if self.writes != 0 {
                file.write_at(part, offset)?;
                moved += self.piece_bytes;
            } else {
                moved += read(file, part, offset)?;
            }
        }
        Ok(moved)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_io(
    file: Handle<SharedFileRank>,
    requests: *mut CSharedRequest,
    requests_count: usize,
) -> i64 {
    count(|| unsafe {
        let requests = slice_mut(requests, requests_count, "requests")?;
        file.with(|file| {
            file.run(|file| {
                let mut done = 0;
                for request in requests {
                    match request.run(file) {
                        Ok(moved) => {
                            request.result = i64::try_from(moved).unwrap_or(i64::MAX);
                            done += 1;
                        }
                        Err(error) => request.result = raise(&error),
                    }
                }
                Ok(done)
            })
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_sync(file: Handle<SharedFileRank>) -> c_int {
    call(|| file.with(|file| file.run(SharedFile::sync)))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_exchange(file: Handle<SharedFileRank>) -> c_int {
    call(|| file.with(|file| file.run(SharedFile::exchange)))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_truncate(file: Handle<SharedFileRank>, size: u64) -> c_int {
    call(|| file.with(|file| file.run(|file| file.set_len(size))))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_laminate(file: Handle<SharedFileRank>) -> c_int {
    call(|| file.with(|file| file.run(SharedFile::laminate)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_stat(
    file: Handle<SharedFileRank>,
    size: *mut u64,
    mtime_ns: *mut i64,
) -> c_int {
    call(|| unsafe {
        let agreed = file.with(|file| file.run(SharedFile::metadata))?;
        put_optional(mtime_ns, agreed.mtime_ns);
        put(size, agreed.size, "size")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_known_size(file: Handle<SharedFileRank>) -> i64 {
    count(|| file.with(|file| file.run(|file| Ok(file.known_size()))))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_close(file: Handle<SharedFileRank>) -> c_int {
    call(|| {
        let Some(closed) = file.take()?.owned("shared file")? else { return Ok(()) };
        let open = closed.file.lock().0.take();
        closed.rank.run(|_| open.map_or(Ok(()), |file| file.close().map(drop)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_barrier(shared: Handle<Arc<SharedJobRank>>) -> c_int {
    call(|| shared.with(|rank| rank.run(|open| open.job().barrier())))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_serve(
    shared: Handle<Arc<SharedJobRank>>,
    milliseconds: u32,
) -> c_int {
    let wait = Duration::from_millis(milliseconds.into());
    call(|| shared.with(|rank| rank.run(|open| open.job().serve(wait))))
}

/// Takes the job out, and closes its handle.
fn take_job(shared: Handle<Arc<SharedJobRank>>) -> Result<Box<SharedJob<LentTransport>>> {
    let job = shared.with(|rank| rank.take())?;
    drop(shared.take()?);
    Ok(job)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_shared_publish(
    shared: Handle<Arc<SharedJobRank>>,
    name: *const c_char,
    id: *mut IdText,
    report: *mut CJobReport,
) -> c_int {
    call(|| unsafe {
        let name = text(name, "name")?;
        let (set, done) = take_job(shared)?.publish(name)?;
        put_set(id, set);
        if let Some(done) = done {
            put_optional(report, CJobReport::new(&done));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_shared_leave(shared: Handle<Arc<SharedJobRank>>) -> c_int {
    call(|| {
        if shared.is_inherited()? {
            return shared.take().map(drop);
        }
        take_job(shared).map(drop)
    })
}

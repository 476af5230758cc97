// SPDX-License-Identifier: Apache-2.0
//! Indexed writer: writers of indexed directories, one for each rank of a communicator.
//!
//! An append of one record takes about as long as a look-up of its handle: each thread keeps the
//! last writer that it used. A writer that was finished is empty, so a thread that still keeps it
//! wastes little memory and never uses it in place of another one.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker::{
    DirectoryWriter, Error, IndexedDraft, JobId, Kind, Rank, RecordLayout, Repository, Result,
    Routing, Session, SessionDirectory, SetId, Transport, ValueFormat,
};
use parking_lot::Mutex;

use crate::arguments::{bytes, invalid, path, put_new, put_optional};
use crate::boundary::call;
use crate::communicator::{Communicator, LentTransport};
use crate::handle::{Handle, HeldObject, handle_kind};
use crate::options::{COptions, read_options};

/// A rank that writes an indexed directory; `None` once it is finished or discarded.
pub struct IndexedWriter(Mutex<Option<OpenWriter>>);

struct OpenWriter {
    writer: DirectoryWriter<LentTransport>,
    draft: IndexedDraft,
    layout: RecordLayout,
    /// The session in which rank 0 enters the directory, and its path.
    entry: Option<(Arc<HeldObject<Session>>, PathBuf)>,
}

/// A writer, and the handle by which a thread knows it.
type KnownWriter = (Handle<IndexedWriter>, Arc<HeldObject<IndexedWriter>>);

thread_local! {
    /// The writer that this thread used last.
    static LAST_WRITER: RefCell<Option<KnownWriter>> = const { RefCell::new(None) };
}

handle_kind!(IndexedWriter, 9, "indexed directory writer");

/// `esker_imd_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CIndexedOptions {
    pub(crate) struct_size: usize,
    pub(crate) format: c_int,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) routes_by_node: c_int,
    pub(crate) memory_bytes: u64,
}

// SAFETY: integers.
unsafe impl COptions for CIndexedOptions {}

impl CIndexedOptions {
    fn format(&self) -> Result<ValueFormat> {
        match self.format {
            0 => Ok(ValueFormat::Base),
            1 => Ok(ValueFormat::Pointer),
            2 => Ok(ValueFormat::Lossy),
            3 => Ok(ValueFormat::Static),
            4 => Ok(ValueFormat::Ordered),
            _ => Err(invalid(format!("options: there is no format {}", self.format))),
        }
    }

    fn layout(&self) -> Result<RecordLayout> {
        if self.key_bytes == 0 && self.value_bytes == 0 {
            return Ok(RecordLayout::Variable);
        }
        let key_bytes = u8::try_from(self.key_bytes).ok().filter(|bytes| *bytes > 0);
        let key_bytes = key_bytes.ok_or_else(|| {
            invalid(format!("options: key_bytes is {}, not 1 to 255", self.key_bytes))
        })?;
        Ok(RecordLayout::Fixed { key_bytes, value_bytes: self.value_bytes })
    }
}

/// `esker_imd_summary`.
#[repr(C)]
pub struct CIndexedSummary {
    pub(crate) records: u64,
    pub(crate) epochs: u64,
    pub(crate) memory_peak: u64,
}

/// The arguments of a rank before the directory exists.
struct DirectoryPlan {
    repository: Repository,
    format: ValueFormat,
    layout: RecordLayout,
    /// At rank 0.
    entry: Option<(Arc<HeldObject<Session>>, PathBuf)>,
}

impl DirectoryPlan {
    /// Checks the arguments of this rank; at rank 0 also that the path is free.
    fn new(
        is_first: bool,
        repository: Handle<Repository>,
        session: Handle<Session>,
        path: &Path,
        options: &CIndexedOptions,
    ) -> Result<Self> {
        let (format, layout) = (options.format()?, options.layout()?);
        let repository = repository.with(|repository| Ok(repository.clone()))?;
        let mut entry = None;
        if is_first {
            let held = session.share()?;
            held.check_process()?;
            let root = held.object().root();
            root.open_dir(path.parent().unwrap_or(Path::new("/")))?;
            if root.exists(path)? {
                let what = format!("{}: there is something already", path.display());
                return Err(Error::new(Kind::Exists, what));
            }
            entry = Some((held, path.to_owned()));
        }
        Ok(Self { repository, format, layout, entry })
    }

    /// Makes the writer of this rank. Collective.
    fn begin(
        self,
        mut transport: LentTransport,
        options: &CIndexedOptions,
    ) -> Result<IndexedWriter> {
        let (format, layout) = (self.format, self.layout);
        let own = self.entry.as_ref().map(|(session, _)| {
            let SessionDirectory { set, number } =
                session.object().draft_indexed(format, layout).directory();
            [&set.0.to_le_bytes()[..], &number.to_le_bytes()].concat()
        });
        let told = transport.broadcast(own.unwrap_or_default())?;
        let split = told.split_first_chunk::<16>();
        let split = split.and_then(|(set, rest)| Some((set, <[u8; 8]>::try_from(rest).ok()?)));
        let (set, number) =
            split.ok_or_else(|| Error::new(Kind::Corrupt, "rank 0 named no directory"))?;
        let set = SetId(u128::from_le_bytes(*set));
        let directory = SessionDirectory { set, number: u64::from_le_bytes(number) };
        let mut draft = self.repository.job(JobId(0)).draft_indexed(directory, format, layout);
        if options.memory_bytes != 0 {
            draft.options.memory_bytes = options.memory_bytes;
        }
        if options.routes_by_node != 0 {
            draft.options.routing = Routing::ThreeHop;
        }
        let writer = draft.writer(transport)?;
        Ok(IndexedWriter(Mutex::new(Some(OpenWriter { writer, draft, layout, entry: self.entry }))))
    }
}

/// Runs `act` with an open writer. `act` may call functions of the caller, which may use other
/// writers.
fn write<R>(
    handle: Handle<IndexedWriter>,
    act: impl Fn(&mut OpenWriter) -> Result<R>,
) -> Result<R> {
    let done = LAST_WRITER.try_with(|last| {
        let last = last.try_borrow().ok()?;
        let (known, held) = last.as_ref()?;
        if known.is(handle) { write_held(held, &act) } else { None }
    });
    if let Ok(Some(done)) = done { done } else { write_found(handle, &act) }
}

/// As [`write`], for a writer that the thread did not use last, or one that was finished, whose
/// handle may be that of a new one.
#[cold]
fn write_found<R>(
    handle: Handle<IndexedWriter>,
    act: impl Fn(&mut OpenWriter) -> Result<R>,
) -> Result<R> {
    let held = handle.share()?;
    let done = write_held(&held, act);
    // Not during a call that uses another writer, nor at the thread's end.
    let _ = LAST_WRITER.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some((handle, held));
        }
    });
    done.unwrap_or_else(|| Err(invalid("the indexed directory was finished")))
}

/// Runs `act` with the writer; `None` if it was finished.
fn write_held<R>(
    held: &HeldObject<IndexedWriter>,
    act: impl Fn(&mut OpenWriter) -> Result<R>,
) -> Option<Result<R>> {
    if let Err(error) = held.check_process() {
        return Some(Err(error));
    }
    match held.object().0.try_lock() {
        Some(mut open) => open.as_mut().map(act),
        None => Some(Err(invalid("indexed directory writer: another call uses it"))),
    }
}

/// Takes an open writer out, and closes its handle.
fn take(handle: Handle<IndexedWriter>) -> Result<OpenWriter> {
    let held = handle.share()?;
    held.check_process()?;
    let Some(mut open) = held.object().0.try_lock() else {
        return Err(invalid("indexed directory writer: another call uses it"));
    };
    let open = open.take();
    drop(handle.take()?);
    let _ = LAST_WRITER.try_with(|last| last.try_borrow_mut().map(|mut last| last.take()));
    open.ok_or_else(|| invalid("the indexed directory was finished"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_create(
    comm: Handle<Communicator>,
    repository: Handle<Repository>,
    session: Handle<Session>,
    name: *const c_char,
    options: *const CIndexedOptions,
    writer: *mut Handle<IndexedWriter>,
) -> c_int {
    call(|| unsafe {
        put_new(writer, || {
            let mut transport = comm.with(Communicator::lend)?;
            let is_first = transport.rank() == Rank(0);
            let plan = path(name, "path").and_then(|name| {
                let options = read_options(options, "options")?;
                let plan = DirectoryPlan::new(is_first, repository, session, name, &options)?;
                Ok((plan, options))
            });
            let (plan, options) = transport.agree(plan)?;
            plan.begin(transport, &options)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_append(
    writer: Handle<IndexedWriter>,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
) -> c_int {
    call(|| unsafe {
        let key = bytes(key, key_bytes, "key")?;
        let value = bytes(value, value_bytes, "value")?;
        write(writer, |open| open.writer.append(key, value))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_append_many(
    writer: Handle<IndexedWriter>,
    keys: *const c_void,
    values: *const c_void,
    records: usize,
) -> c_int {
    call(|| unsafe {
        write(writer, |open| {
            let RecordLayout::Fixed { key_bytes, value_bytes } = open.layout else {
                let what = "records of different sizes are appended one by one";
                return Err(invalid(what));
            };
            let (key_bytes, value_bytes) = (usize::from(key_bytes), value_bytes as usize);
            let total =
                |size: usize| records.checked_mul(size).ok_or_else(|| invalid("records: too many"));
            let keys = bytes(keys, total(key_bytes)?, "keys")?;
            let values = bytes(values, total(value_bytes)?, "values")?;
            for (index, key) in keys.chunks_exact(key_bytes).enumerate() {
                open.writer.append(key, &values[index * value_bytes..][..value_bytes])?;
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_imd_poll(writer: Handle<IndexedWriter>) -> c_int {
    call(|| write(writer, |open| open.writer.poll()))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_imd_epoch_flush(writer: Handle<IndexedWriter>) -> c_int {
    call(|| write(writer, |open| open.writer.epoch_flush()))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_imd_epoch_flush_at(writer: Handle<IndexedWriter>, step: u64) -> c_int {
    call(|| write(writer, |open| open.writer.epoch_flush_at(step)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_finish(
    writer: Handle<IndexedWriter>,
    summary: *mut CIndexedSummary,
) -> c_int {
    call(|| unsafe {
        let OpenWriter { writer, draft, entry, .. } = take(writer)?;
        let done = writer.finish()?;
        if let Some((session, path)) = entry {
            session.object().create_indexed(path, &draft)?;
        }
        let counts = CIndexedSummary {
            records: done.totals.rows,
            epochs: done.epochs,
            memory_peak: done.memory_peak,
        };
        put_optional(summary, counts);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_imd_discard(writer: Handle<IndexedWriter>) -> c_int {
    call(|| {
        if writer.is_inherited()? {
            return writer.take().map(drop);
        }
        take(writer).map(drop)
    })
}

// SPDX-License-Identifier: Apache-2.0
//! librocksdb-driver.so: RocksDB as a target of `esker workbench`, by `../../key-value-driver.h`, with
//! the settings that peer-rocksdb uses for files. It has the allocator of the process that loads it.
//! Invariant: a handle is a `Database` that `open` has boxed and `close` has not taken back.
//! Concurrency: RocksDB serves threads by itself; the rest of a handle are atomics.

#[expect(dead_code, reason = "the command uses the rest")]
mod settings;

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rocksdb::{DB, ErrorKind, Options, ReadOptions, WriteOptions};
use settings::{
    CACHE_BYTES_TUNED, FILTER_BITS, Settings, WRITE_BUFFER_BYTES_TUNED, WRITE_BUFFERS_TUNED,
};

const VERSION: u32 = 1;
const MESSAGE_BYTES: usize = 512;

const OK: i32 = 0;
const NOT_FOUND: i32 = 1;
const INVALID: i32 = 2;
const BUSY: i32 = 3;
const DENIED: i32 = 4;
const NO_SPACE: i32 = 5;
const CORRUPT: i32 = 6;
const FAILED: i32 = 7;

const LEVELS: [&str; 3] = ["none", "async", "always"];

const LOG_BUFFER_BYTES_MAX: u64 = 64 << 10;
const LOG_DELAY_MAX: Duration = Duration::from_millis(100);

/// Names the version of RocksDB that is compiled in.
const LOCK_FILE: &str = include_str!("../Cargo.lock");

#[repr(C)]
pub struct Message {
    text: [u8; MESSAGE_BYTES],
}

type Visitor = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> i32;

/// A status other than OK, and its reason.
type Failure = (i32, String);

struct Database {
    db: Arc<DB>,
    write: WriteOptions,
    read: ReadOptions,
    settings: Settings,
    log: Option<BufferedLog>,
}

const fn is_shared_by_threads<T: Send + Sync>() {}
const _: () = is_shared_by_threads::<Database>();

impl Database {
    /// Hands the log to the kernel if it holds enough; a write has added `bytes`.
    fn logged(&self, bytes: usize) -> Result<(), Failure> {
        let Some(log) = &self.log else { return Ok(()) };
        let held = log.held_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if held < LOG_BUFFER_BYTES_MAX {
            return Ok(());
        }
        log.held_bytes.store(0, Ordering::Relaxed);
        self.db.flush_wal(false).map_err(failure)
    }
}

/// The log is held back until 64 KiB or 100 ms, the promise of Esker's level `async`.
struct BufferedLog {
    held_bytes: AtomicU64,
    stop: Sender<()>,
    timer: JoinHandle<Result<(), rocksdb::Error>>,
}

impl BufferedLog {
    fn of(db: &Arc<DB>) -> Self {
        let (stop, stopped) = channel::<()>();
        let db = db.clone();
        let timer = std::thread::spawn(move || {
            while stopped.recv_timeout(LOG_DELAY_MAX) == Err(RecvTimeoutError::Timeout) {
                db.flush_wal(false)?;
            }
            Ok(())
        });
        Self { held_bytes: AtomicU64::new(0), stop, timer }
    }

    fn end(self) -> Result<(), Failure> {
        drop(self.stop);
        let ended = self.timer.join();
        ended.map_err(|_| (FAILED, "the timer of the log panicked".to_owned()))?.map_err(failure)
    }
}

fn failure(error: rocksdb::Error) -> Failure {
    let (kind, text) = (error.kind(), error.into_string());
    let says = |part: &str| text.contains(part);
    let status = match kind {
        ErrorKind::Corruption | ErrorKind::InvalidArgument => CORRUPT,
        ErrorKind::NotFound => NOT_FOUND,
        _ if says("While lock file") || says("lock hold by current process") => BUSY,
        _ if says("Permission denied") => DENIED,
        _ if says("No space left on device") || says("Disk quota exceeded") => NO_SPACE,
        _ => FAILED,
    };
    (status, text)
}

/// The settings for files with several threads.
fn settings_of(options: &str, durability: i32) -> Result<Settings, Failure> {
    let level = usize::try_from(durability).ok().and_then(|level| LEVELS.get(level));
    let Some(level) = level else { return Err((INVALID, "no such durability".to_owned())) };
    let words = ["driver", "--store", ".", "--threads", "2"];
    let chosen = ["--options", options, "--durability", level];
    let words = words.into_iter().chain(chosen).map(str::to_owned);
    Settings::parse(words).map_err(|what| (INVALID, what))
}

/// The settings that differ from the library's own.
fn summary(settings: &Settings) -> String {
    let filter = format!("filter_bits={FILTER_BITS}");
    if !settings.tuned() {
        return filter;
    }
    format!(
        "{filter} write_buffer_size={WRITE_BUFFER_BYTES_TUNED} \
         max_write_buffer_number={WRITE_BUFFERS_TUNED} cache_bytes={CACHE_BYTES_TUNED} \
         compression=lz4 verify_checksums=0"
    )
}

/// RocksDB's version, from that of its crate: `0.19.0+11.8.1`.
fn rocksdb_version() -> &'static str {
    let version = LOCK_FILE.split("name = \"librocksdb-sys\"").nth(1).and_then(|rest| {
        let line = rest.lines().find_map(|line| line.strip_prefix("version = \""))?;
        line.trim_end_matches('"').split_once('+')
    });
    version.map_or("of an unknown version", |(_, version)| version)
}

fn open(path: &str, options: &str, durability: i32, create: bool) -> Result<Database, Failure> {
    let settings = settings_of(options, durability)?;
    // An open that shall not make a database would still make files.
    if !create && !Path::new(path).join("CURRENT").exists() {
        return Err((NOT_FOUND, "no database".to_owned()));
    }
    let mut engine = settings.engine().map_err(|what| (INVALID, what))?;
    engine.create_if_missing(create);
    let db = Arc::new(DB::open(&engine, path).map_err(failure)?);
    let mut write = WriteOptions::default();
    write.disable_wal(settings.durability == "none");
    write.set_sync(settings.durability == "always");
    let log = settings.log_buffered().then(|| BufferedLog::of(&db));
    let read = settings.read_options();
    Ok(Database { db, write, read, settings, log })
}

/// Puts the memtable into tables, as the log may hold nothing of it.
fn close(mut database: Database) -> Result<(), Failure> {
    let ended = database.log.take().map_or(Ok(()), BufferedLog::end);
    ended.and(database.db.flush().map_err(failure))
}

fn scan(
    database: &Database,
    prefix: &[u8],
    first: &[u8],
    mut visit: impl FnMut(&[u8], usize) -> bool,
) -> Result<(), Failure> {
    let mut read = database.settings.read_options();
    read.set_total_order_seek(true);
    let mut it = database.db.raw_iterator_opt(read);
    it.seek(first.max(prefix));
    while let Some((key, value)) = it.item() {
        if !key.starts_with(prefix) || !visit(key, value.len()) {
            return Ok(());
        }
        it.next();
    }
    it.status().map_err(failure)
}

/// Writes as much of `text` as there is room for, and a zero byte.
fn write_text(text: &str, buffer: &mut [u8]) {
    let Some(room) = buffer.len().checked_sub(1) else { return };
    let bytes = text.len().min(room);
    buffer[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
    buffer[bytes] = 0;
}

fn answer(done: Result<(), Failure>, message: &mut Message) -> i32 {
    match done {
        Ok(()) => OK,
        Err((status, text)) => {
            write_text(&text, &mut message.text);
            status
        }
    }
}

/// The text at `text`.
///
/// # Safety
/// A zero byte ends it, and it outlives `'a`.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| (INVALID, "a path or an option is not UTF-8".to_owned()))
}

/// The bytes at `bytes`, which may be anywhere if there are none.
///
/// # Safety
/// There are `count`, and they outlive `'a`.
unsafe fn bytes<'a>(bytes: *const c_void, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes.cast(), count) }
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_driver_version() -> u32 {
    VERSION
}

/// # Safety
/// As the header demands; so it is for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_describe(
    options: *const c_char,
    durability: i32,
    buffer: *mut c_char,
    buffer_bytes: usize,
    message: *mut Message,
) -> i32 {
    // SAFETY: the header demands valid pointers and lengths.
    let (options, buffer, message) = unsafe {
        let buffer = std::slice::from_raw_parts_mut(buffer.cast::<u8>(), buffer_bytes);
        (text(options), buffer, &mut *message)
    };
    let described = options.and_then(|options| settings_of(options, durability)).map(|s| {
        let log = match s.durability.as_str() {
            "none" => "none",
            _ if s.log_buffered() => "buffered",
            _ => "written",
        };
        let settings = format!(
            "RocksDB {}; options={} durability={} log={log} sync={} {}",
            rocksdb_version(),
            s.options,
            s.durability,
            u8::from(s.durability == "always"),
            summary(&s),
        );
        write_text(&settings, buffer);
    });
    answer(described, message)
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_open(
    path: *const c_char,
    options: *const c_char,
    durability: i32,
    create: i32,
    handle: *mut *mut c_void,
    message: *mut Message,
) -> i32 {
    // SAFETY: the header demands valid pointers.
    let (path, options, message) = unsafe { (text(path), text(options), &mut *message) };
    let opened = path.and_then(|path| open(path, options?, durability, create != 0));
    let opened = opened.map(|database| {
        // SAFETY: as above.
        unsafe { *handle = Box::into_raw(Box::new(database)).cast() };
    });
    answer(opened, message)
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_close(handle: *mut c_void, message: *mut Message) -> i32 {
    // SAFETY: the handle is one of `open`, which nobody uses after this.
    let (database, message) = unsafe { (Box::from_raw(handle.cast::<Database>()), &mut *message) };
    answer(close(*database), message)
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_destroy(path: *const c_char, message: *mut Message) -> i32 {
    // SAFETY: the header demands valid pointers.
    let (path, message) = unsafe { (text(path), &mut *message) };
    let destroyed = path.and_then(|path| DB::destroy(&Options::default(), path).map_err(failure));
    answer(destroyed, message)
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_put(
    handle: *mut c_void,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
    message: *mut Message,
) -> i32 {
    // SAFETY: the handle is one of `open`, and the header demands valid pointers and lengths.
    let (database, key, value, message) = unsafe {
        let database = &*handle.cast::<Database>();
        (database, bytes(key, key_bytes), bytes(value, value_bytes), &mut *message)
    };
    let put = database.db.put_opt(key, value, &database.write).map_err(failure);
    answer(put.and_then(|()| database.logged(key.len() + value.len())), message)
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_get(
    handle: *mut c_void,
    key: *const c_void,
    key_bytes: usize,
    value: *mut c_void,
    value_bytes_max: usize,
    value_bytes: *mut usize,
    message: *mut Message,
) -> i32 {
    // SAFETY: as in `put`.
    let (database, key, message) =
        unsafe { (&*handle.cast::<Database>(), bytes(key, key_bytes), &mut *message) };
    match database.db.get_pinned_opt(key, &database.read) {
        Ok(Some(found)) => {
            let copied = found.len().min(value_bytes_max);
            // SAFETY: the header demands room for `value_bytes_max` bytes and for the length.
            unsafe {
                std::ptr::copy_nonoverlapping(found.as_ptr(), value.cast(), copied);
                *value_bytes = found.len();
            }
            OK
        }
        Ok(None) => NOT_FOUND,
        Err(error) => answer(Err(failure(error)), message),
    }
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_remove(
    handle: *mut c_void,
    key: *const c_void,
    key_bytes: usize,
    message: *mut Message,
) -> i32 {
    // SAFETY: as in `put`.
    let (database, key, message) =
        unsafe { (&*handle.cast::<Database>(), bytes(key, key_bytes), &mut *message) };
    let removed = database.db.delete_opt(key, &database.write).map_err(failure);
    answer(removed.and_then(|()| database.logged(key.len())), message)
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_driver_scan(
    handle: *mut c_void,
    prefix: *const c_void,
    prefix_bytes: usize,
    first: *const c_void,
    first_bytes: usize,
    visit: Visitor,
    context: *mut c_void,
    message: *mut Message,
) -> i32 {
    // SAFETY: as in `put`.
    let (database, prefix, first, message) = unsafe {
        let database = &*handle.cast::<Database>();
        (database, bytes(prefix, prefix_bytes), bytes(first, first_bytes), &mut *message)
    };
    let scanned = scan(database, prefix, first, |key, value_bytes| {
        // SAFETY: the header lets the visitor be called with its context and any key.
        unsafe { visit(context, key.as_ptr().cast(), key.len(), value_bytes) == 0 }
    });
    answer(scanned, message)
}

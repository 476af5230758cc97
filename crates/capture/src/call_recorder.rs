// SPDX-License-Identifier: Apache-2.0
//! Call recorder: the log of a recording, room for its calls, and the library for its programs.
//!
//! The file of the log loses its name when the recording ends. A thread keeps room ready for some 100 ms of
//! calls, since a write to a mapped file without room would end the program.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_base::{Clock, Error, Kind, Result};
use esker_preload::{PreloadLibrary, preload_variable};
use parking_lot::{Condvar, Mutex};
use tempfile::{Builder, TempDir};

use crate::call_log::CallLog;
use crate::library::call_slot::{
    ENDED_AT, FIRST_SLOT, MAGIC, NEXT_AT, READY_AT, SLOT_BYTES, SLOTS_MAX,
};
use crate::library::{LIBRARY, settings};

/// Slots that are made ready at once: 16 MiB. The first ones, too, so that a recording without room does not begin.
const ROOM_SLOTS: u64 = 1 << 18;

/// Makes a file that is too large (`RLIMIT_FSIZE`) an error for this thread, and not the end of the process.
fn block_file_size_signal() {
    // SAFETY: the set is initialized before it is used, and belongs to this thread.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
    }
}

/// Interval at which the recorder looks whether there is room.
const ROOM_INTERVAL: Duration = Duration::from_millis(10);

/// A recording that goes on. Dropping it gives up the log.
#[derive(Debug)]
pub struct CallRecorder {
    room: Arc<LogRoom>,
    thread: Option<JoinHandle<()>>,
    library: PreloadLibrary,
    _directory: TempDir,
}

/// The file of a log, and whether more room is wanted.
#[derive(Debug)]
struct LogRoom {
    file: File,
    path: PathBuf,
    is_ending: Mutex<bool>,
    ended: Condvar,
    /// The reason for which there is no more room.
    failure: Mutex<Option<Error>>,
}

impl CallRecorder {
    /// Begins a recording whose log is in a new directory of `parent`, at most 16 GiB large. Only the user can
    /// read it; programs of other users are not recorded.
    ///
    /// # Errors
    /// `Unsupported` on machines for which there is no library, and if programs may load it from neither
    /// `parent` nor the directory of temporary files; as the file system answers.
    pub fn begin(parent: &Path, clock: &dyn Clock) -> Result<Self> {
        let shown = || parent.display().to_string();
        let parent = parent.canonicalize().map_err(|error| Error::io(error, shown()))?;
        let private = Permissions::from_mode(0o700);
        let directory =
            Builder::new().prefix("esker-capture-").permissions(private).tempdir_in(&parent);
        let directory = directory.map_err(|error| Error::io(error, shown()))?;
        let path = directory.path().join("calls");
        let failed = |error| Error::io(error, path.display().to_string());
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(failed)?;
        let mut header = vec![0; FIRST_SLOT as usize * SLOT_BYTES];
        let mut set =
            |at: usize, value: u64| header[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        set(0, MAGIC);
        set(8, clock.now_ns());
        set(16, clock.monotonic_ns());
        set(NEXT_AT, FIRST_SLOT);
        set(READY_AT, FIRST_SLOT);
        let encoded = settings::encode(path.as_os_str().as_bytes());
        let encoded = encoded.ok_or_else(|| Error::new(Kind::TooLarge, "the path is too long"))?;
        let temporary = std::env::temp_dir();
        let library = PreloadLibrary::write(
            (LIBRARY, "libesker_capture.so"),
            (&settings::MARK, &encoded),
            &[&parent, &temporary],
        )?;
        let room = Arc::new(LogRoom {
            file,
            path,
            is_ending: Mutex::new(false),
            ended: Condvar::new(),
            failure: Mutex::new(None),
        });
        let (sender, receiver) = mpsc::channel();
        let keeper = room.clone();
        let thread = std::thread::Builder::new().name("esker-capture".into());
        let thread = thread.spawn(move || {
            block_file_size_signal();
            let begun = keeper.write(&header, 0).and_then(|()| keeper.extend(FIRST_SLOT));
            let ready = begun.as_ref().ok().copied();
            // The caller waits for it.
            let _ = sender.send(begun.map(drop));
            if let Some(ready) = ready {
                keeper.keep(ready);
            }
        });
        let thread =
            thread.map_err(|error| Error::io(error, "start the thread that makes room"))?;
        receiver.recv().expect("the thread sends")?;
        Ok(Self { room, thread: Some(thread), library, _directory: directory })
    }

    /// The variable of the environment by which programs load the library.
    #[must_use]
    pub fn variable(&self) -> (OsString, OsString) {
        preload_variable(self.library.path())
    }

    /// Ends the recording: programs that still run are not recorded any more. Returns its calls.
    ///
    /// # Errors
    /// As the file system answers.
    pub fn end(mut self) -> Result<CallLog> {
        self.room.mark_ended()?;
        self.join();
        let failure = self.room.failure.lock().take();
        let file = self.room.file.try_clone();
        let file = file.map_err(|error| self.room.failed(error))?;
        CallLog::new(file, self.room.path.display().to_string(), failure)
    }

    fn join(&mut self) {
        *self.room.is_ending.lock() = true;
        self.room.ended.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread does not panic");
        }
    }
}

impl Drop for CallRecorder {
    fn drop(&mut self) {
        // Programs that still run must not wait for room.
        let _ = self.room.mark_ended();
        self.join();
    }
}

impl LogRoom {
    fn failed(&self, error: io::Error) -> Error {
        Error::io(error, self.path.display().to_string())
    }

    fn number(&self, at: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at as u64).map_err(|error| self.failed(error))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn set_number(&self, at: usize, number: u64) -> Result<()> {
        self.write(&number.to_ne_bytes(), at as u64)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|error| self.failed(error))
    }

    fn mark_ended(&self) -> Result<()> {
        self.set_number(ENDED_AT, 1)
    }

    /// Makes room for the slots from `ready` to `end`.
    fn make_ready(&self, ready: u64, end: u64) -> Result<()> {
        let (from, bytes) = (ready * SLOT_BYTES as u64, (end - ready) * SLOT_BYTES as u64);
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, flags, from, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let zeros = vec![0; 1 << 20];
                let mut at = from;
                while at < from + bytes {
                    let part = (from + bytes - at).min(zeros.len() as u64) as usize;
                    self.write(&zeros[..part], at)?;
                    at += part as u64;
                }
            }
            done => done.map_err(|errno| self.failed(errno.into()))?,
        }
        self.set_number(READY_AT, end)
    }

    /// Keeps room ready until the recording ends.
    fn keep(&self, mut ready: u64) {
        let mut is_ending = self.is_ending.lock();
        while !*is_ending {
            match self.extend(ready) {
                Ok(extended) => ready = extended,
                Err(error) => {
                    *self.failure.lock() = Some(error);
                    // Nobody waits for room.
                    let _ = self.mark_ended();
                    return;
                }
            }
            self.ended.wait_for(&mut is_ending, ROOM_INTERVAL);
        }
    }

    /// Makes room after the slots below `ready`, if programs will soon need some; returns the first slot without.
    fn extend(&self, mut ready: u64) -> Result<u64> {
        let next = self.number(NEXT_AT)?;
        while next.saturating_add(ROOM_SLOTS / 2) > ready {
            if ready >= SLOTS_MAX {
                let what = format!("the log has {SLOTS_MAX} slots, the most that it can have");
                return Err(Error::new(Kind::TooLarge, what));
            }
            let end = (ready + ROOM_SLOTS).min(SLOTS_MAX);
            self.make_ready(ready, end)?;
            ready = end;
        }
        Ok(ready)
    }
}

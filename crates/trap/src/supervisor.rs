// SPDX-License-Identifier: Apache-2.0
//! Supervisor: the threads that answer suspended system calls, from the first to the last one.

use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use esker_base::{Error, Kind, Result};
use esker_fs::session::view::NamespaceView;
use rustix::io::Errno;

use crate::calls::TrappedCall;
use crate::filter;
use crate::identities::Identities;
use crate::listener::{CallAnswer, Listener, SuspendedCall};
use crate::listing::Listings;
use crate::preload::SupervisorLibrary;
use crate::resolve::ShownPlace;
use crate::skeleton::Skeleton;
use crate::spool::Spool;

/// Settings of a supervisor: the namespace, and the place at which it is shown.
pub struct TrapOptions {
    /// The namespace.
    pub view: NamespaceView,
    /// The directory at which programs see it: a new or an empty one.
    pub place: PathBuf,
    /// The directory for files while programs have them open, which needs room for all of them.
    pub spool: PathBuf,
    /// Threads that answer system calls.
    pub threads: usize,
    /// Makes a library that programs can preload, so that calls about other files are fast.
    pub preload: bool,
    /// Called for files that could not be written back to the session, whose content stays in the
    /// spool, and for files that other processes made at the place.
    pub report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// The state that the threads of a supervisor share.
pub(crate) struct Supervisor {
    identities: Identities,
    place: ShownPlace,
    skeleton: Skeleton,
    spool: Spool,
    listings: Listings,
    preload: Option<SupervisorLibrary>,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

impl Supervisor {
    fn new(options: TrapOptions) -> Result<Self> {
        let skeleton = prepare(&options.place)?;
        let spool = Spool::new(&options.spool)?;
        let preload = options.preload.then(|| preload_library(&skeleton, &spool)).transpose()?;
        Ok(Self {
            identities: Identities::new(&options.view),
            place: ShownPlace::new(skeleton.root().as_os_str().as_bytes()),
            skeleton,
            spool,
            preload,
            listings: Listings::default(),
            report: options.report,
        })
    }

    pub(crate) fn identities(&self) -> &Identities {
        &self.identities
    }

    pub(crate) fn shown_at(&self) -> &ShownPlace {
        &self.place
    }

    pub(crate) fn skeleton(&self) -> &Skeleton {
        &self.skeleton
    }

    pub(crate) fn spool(&self) -> &Spool {
        &self.spool
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    /// Answers calls. Once `is_ending` is set, the next call of thread `starter` ends this thread.
    fn serve(&self, listener: &Listener, starter: u32, is_ending: &AtomicBool) {
        loop {
            let call = match listener.receive() {
                Ok(call) => call,
                Err(error) => {
                    (self.report)(&Error::io(error, "receive system calls"));
                    return;
                }
            };
            if call.caller.thread() == starter && is_ending.load(Ordering::SeqCst) {
                listener.answer(&call, CallAnswer::Continue);
                return;
            }
            let answer = self.answer(listener, &call);
            listener.answer(&call, answer);
        }
    }

    fn answer(&self, listener: &Listener, call: &SuspendedCall) -> CallAnswer {
        let trapped = TrappedCall::new(self, listener, call);
        // A caller that gets no answer waits for ever.
        let answered = catch_unwind(AssertUnwindSafe(|| trapped.answer(call.number)));
        answered.map_or(CallAnswer::Failure(Errno::IO), CallAnswer::from)
    }
}

/// Writes the library that programs of this supervisor preload.
fn preload_library(skeleton: &Skeleton, spool: &Spool) -> Result<SupervisorLibrary> {
    let temporary = std::env::temp_dir();
    let parents = [spool.path().parent().unwrap_or(Path::new("/")), &temporary];
    SupervisorLibrary::write(skeleton.root(), &parents)
}

/// Fails if `path` exists and is not a directory.
fn check_directory(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => {
            let what = format!("{}: not a directory", path.display());
            Err(Error::new(Kind::NotADirectory, what))
        }
        _ => Ok(()),
    }
}

/// Makes the place at which a namespace is shown, and locks it against other supervisors.
fn prepare(place: &Path) -> Result<Skeleton> {
    let failed = |error: std::io::Error| Error::io(error, place.to_string_lossy());
    check_directory(place)?;
    std::fs::create_dir_all(place).map_err(failed)?;
    let path = place.canonicalize().map_err(failed)?;
    if path == Path::new("/") {
        return Err(Error::new(Kind::Invalid, "a namespace cannot be shown at /"));
    }
    let skeleton = Skeleton::new(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            let what = format!(
                "{}: another command shows a namespace there; name another directory",
                place.display()
            );
            Error::new(Kind::Conflict, what)
        }
        _ => failed(error),
    })?;
    if std::fs::read_dir(place).map_err(failed)?.next().is_some() {
        let what = format!(
            "{}: has entries, which would be hidden: name a new or an empty directory",
            place.display()
        );
        return Err(Error::new(Kind::NotEmpty, what));
    }
    Ok(skeleton)
}

/// Removes what the supervisor has made at the place.
///
/// # Errors
/// `NotEmpty` if others have made files there, which stay.
fn clear(skeleton: &Skeleton) -> Result<()> {
    let place = skeleton.root();
    let left = skeleton.clear().map_err(|error| Error::io(error, place.to_string_lossy()))?;
    let (files, stay) = match left {
        0 => return Ok(()),
        1 => ("a file", "it stays, and is"),
        _ => ("files", "they stay, and are"),
    };
    let what = format!(
        "{}: processes that did not see the namespace have made {files} there; {stay} not in it",
        place.display()
    );
    Err(Error::new(Kind::NotEmpty, what))
}

/// Gives each thread a heap of its own. The thread that sees the namespace may open a file within
/// `malloc` (glibc reads `/proc/sys/vm/overcommit_memory`), with its heap locked: a thread that has to
/// answer that call would wait for the same heap.
fn keep_heaps_apart() {
    #[cfg(target_env = "gnu")]
    {
        const HEAPS_MAX: i32 = 1 << 12;
        // SAFETY: the call takes numbers.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX) };
    }
}

/// Runs `work` in a thread that sees a namespace at a place, as does every process that it starts,
/// and returns its result. `work` gets the path of the library that programs preload, if that was
/// asked for. When this returns, everything that programs have written to files is in the session,
/// which is not ended. In processes that `work` leaves behind, further system calls that name files
/// fail (`ENOSYS`).
///
/// # Errors
/// `NotEmpty` if the place has entries; `Unsupported` where the kernel does not allow it, or if
/// programs could load the library from nowhere; `Conflict` inside of another such thread; after
/// `work` has ended, errors of the store if files could not be written back.
pub fn run<T: Send>(
    options: TrapOptions,
    work: impl FnOnce(Option<&Path>) -> T + Send,
) -> Result<T> {
    let threads = options.threads.max(1);
    keep_heaps_apart();
    let supervisor = Supervisor::new(options)?;
    let is_ending = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| supervisor.spool.write_back_closed(&*supervisor.report));
        let (sender, receiver) = mpsc::channel();
        let is_ending = &is_ending;
        let preload = supervisor.preload.as_ref();
        let starter = scope.spawn(move || {
            let installed = filter::install(preload.map(|preload| preload.pass));
            let is_installed = installed.is_ok();
            let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let sent = sender.send(installed.map(|listener| (listener, thread)));
            if sent.is_err() || !is_installed {
                return None;
            }
            // A panic continues once the other threads have ended.
            let work = || work(preload.map(|preload| preload.library.path()));
            let done = catch_unwind(AssertUnwindSafe(work));
            is_ending.store(true, Ordering::SeqCst);
            for _ in 0..threads {
                // One of them receives this call, and ends.
                let _ = rustix::fs::access("/", rustix::fs::Access::EXISTS);
            }
            Some(done)
        });
        let installed = receiver.recv().expect("the thread sends before all else");
        let failed = match installed {
            Ok((listener, thread)) => {
                let listener = Listener::new(listener);
                std::thread::scope(|servers| {
                    for _ in 0..threads {
                        servers.spawn(|| supervisor.serve(&listener, thread, is_ending));
                    }
                });
                None
            }
            Err(error) => Some(error),
        };
        let done = starter.join().expect("panics are caught");
        supervisor.spool.end();
        failed.map_or(Ok(done), Err)
    });
    let Supervisor { spool, skeleton, report, .. } = supervisor;
    let written = spool.close();
    // Files that stay at the place are reported, but do not fail the program.
    let left = clear(&skeleton).err();
    left.iter().for_each(report);
    let done = result?.expect("ran, since the filter is installed");
    let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    written.map(|()| done)
}

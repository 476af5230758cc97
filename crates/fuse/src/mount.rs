// SPDX-License-Identifier: Apache-2.0
//! Mount: serves a view at a directory, from the first request to the last.
//!
//! A mount ends by `umount`, `fusermount3 -u`, a request to end it (`control`) or a signal. The
//! first three fail while the mount is in use; a signal detaches it anyway. After the end all files
//! are closed, and the caller publishes the session, if there is one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use esker_base::{Clock, Error, Kind, Result, shell_word};
use fuser::{Config, MountOption, SessionACL};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::{ControlClient, ControlListener, ControlRequest};
use crate::failed_change::expire_names;
use crate::file::InPlacePolicy;
use crate::fusermount::unmount_by_helper;
use crate::mount_state::{MountSetup, MountState};
use crate::prune::prune_until;
use crate::server::{Server, Transport, TransportChoice};
use crate::statistics::RequestStatistics;
use esker_fs::session::view::NamespaceView;

/// The device through which the kernel sends requests.
const DEVICE: &str = "/dev/fuse";

/// Options of a mount.
pub struct MountOptions {
    /// Source of the mount, as `mount` and `df` show it.
    pub source: String,
    /// Name under which a session will be published, or name of the snapshot.
    pub name: String,
    /// The requested transport of requests.
    pub transport: Transport,
    /// Threads that answer the kernel, or that help the threads of rings; at least 1.
    pub threads: usize,
    /// True if the kernel collects small writes before it passes them on.
    pub writes_back: bool,
    /// New files of a session that the kernel writes directly in the store, if that is a directory.
    pub in_place: InPlacePolicy,
    /// True if other users may access it.
    pub allows_others: bool,
    /// Number of files that the kernel may know before it is asked to forget some:
    /// [`crate::KNOWN_FILES_MAX`], except in tests.
    pub known_files_max: usize,
    /// True if the mount counts requests by kind, for [`MountEnding::requests`] and
    /// [`ControlRequest::Statistics`].
    pub counts_requests: bool,
    /// The directory of the store, whose free space is the mount's.
    pub store: Option<PathBuf>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Receives errors that users did not cause: a store that does not answer, damaged bytes.
    pub report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// A mounted view.
pub struct Mount {
    server: Server,
    shared: Arc<MountShared>,
    known_files_max: usize,
}

/// State shared by the threads of a mount.
struct MountShared {
    state: Arc<MountState>,
    mountpoint: PathBuf,
    /// The device, through which the kernel also says whether the mount is connected.
    device: Arc<OwnedFd>,
    listener: ControlListener,
    /// The client that requested the end and waits until everything is done.
    asker: Mutex<Option<ControlClient>>,
}

/// A mount that has ended. A client that requested the end waits for [`MountEnding::report`].
#[must_use]
pub struct MountEnding {
    asker: Option<ControlClient>,
    /// The outcome of closing all open files.
    pub closed: Result<()>,
    /// The number of requests by kind, if the mount counted them.
    pub requests: Option<Value>,
}

/// True if this machine supports FUSE mounts.
#[must_use]
pub fn is_supported() -> bool {
    open_device().is_ok()
}

impl Mount {
    /// Mounts `view` at `mountpoint`. Requests wait until [`Mount::run`].
    ///
    /// # Errors
    /// `Invalid` if `mountpoint` is not a directory; `Denied` or `Unavailable` as the kernel
    /// answers.
    pub fn new(view: NamespaceView, mountpoint: &Path, options: MountOptions) -> Result<Self> {
        let io = |what: &str, error| Error::io(error, format!("{what} {}", mountpoint.display()));
        let mountpoint =
            mountpoint.canonicalize().map_err(|error| io("find the directory", error))?;
        let listener =
            ControlListener::new().map_err(|error| io("listen for requests to", error))?;
        let set = view.session().map(|session| session.set().to_string());
        let status = listener.status(&options.name, set);
        let config = config_of(&view, &options);
        let wanted = (options.transport, options.threads);
        let (stale_names, expiring) = std::sync::mpsc::channel();
        let setup = MountSetup {
            status,
            clock: options.clock,
            store: options.store,
            writes_back: options.writes_back,
            in_place: options.in_place,
            counts_requests: options.counts_requests,
            stale_names,
            report: options.report,
        };
        let state = Arc::new(MountState::new(view, setup));
        let server = Server::new(&state, wanted, |driver| {
            fuser::Session::new(driver, &mountpoint, &config)
                .map_err(|error| failed("mount at", &mountpoint, &error))
        })?;
        let notifier = state.notifier.lock().clone();
        if let Some(notifier) = notifier {
            drop(std::thread::spawn(move || expire_names(&notifier, &expiring)));
        }
        let device = server.as_fd().try_clone_to_owned();
        let device = device.map_err(|error| Error::io(error, "open the mount's device again"))?;
        let (device, asker) = (Arc::new(device), Mutex::default());
        let shared = MountShared { state, mountpoint, device, listener, asker };
        Ok(Self { server, shared: Arc::new(shared), known_files_max: options.known_files_max })
    }

    /// The transport of requests, and the reason if it is not the requested one.
    #[must_use]
    pub fn transport(&self) -> &TransportChoice {
        self.server.choice()
    }

    /// Returns a function that counts the files that the kernel knows.
    pub fn known_files(&self) -> impl Fn() -> usize + Send + use<> {
        let state = self.shared.state.clone();
        move || state.nodes.count()
    }

    /// Answers the kernel until the mount ends.
    ///
    /// # Errors
    /// Those that the kernel reports; the view stays as it was.
    pub fn run(self) -> Result<MountEnding> {
        let Self { server, shared, known_files_max } = self;
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|error| Error::io(error, "wait for signals"))?;
        let stop = signals.handle();
        let (ends, end) = std::sync::mpsc::channel();
        let (on_signals, taken) = (shared.clone(), ends.clone());
        // These threads end with the process: no command can send requests to a mount that is gone,
        // and programs with open files in a detached mount are served until then.
        drop(std::thread::spawn(move || on_signals.end_on(signals, &taken)));
        let on_requests = shared.clone();
        drop(std::thread::spawn(move || on_requests.answer_requests()));
        let (ends_reclaiming, end_of_mount) = std::sync::mpsc::channel();
        let state = shared.state.clone();
        let reclaiming = std::thread::spawn(move || state.reclaim_until(&end_of_mount));
        let device = shared.device.clone();
        let (ends_pruning, end_of_mount) = std::sync::mpsc::channel();
        let state = shared.state.clone();
        drop(std::thread::spawn(move || {
            prune_until(&state.nodes, &device, known_files_max, &end_of_mount);
        }));
        drop(std::thread::spawn(move || server.answer_kernel(&ends)));
        let ran = end.recv().unwrap_or_else(|_| Err(io::Error::other("the mount's thread died")));
        stop.close();
        drop((ends_reclaiming, ends_pruning));
        // A thread that reads a request during the unmount may get ECONNABORTED.
        let is_unmounted = |error: &io::Error| {
            error.raw_os_error() == Some(rustix::io::Errno::CONNABORTED.raw_os_error())
        };
        let ran = ran.or_else(|error| if is_unmounted(&error) { Ok(()) } else { Err(error) });
        if ran.is_err() {
            // Before open files are closed: programs whose requests are no longer answered get
            // errors at once.
            shared.abort();
        }
        // A panicking thread has already reported the panic.
        let _ = reclaiming.join();
        let closed = shared.state.close_all();
        let closed = closed.map_err(|errno| {
            Error::new(Kind::DeviceFailed, format!("close what was open: {}", text_of(errno)))
        });
        ran.map_err(|error| Error::io(error, "answer the kernel"))?;
        let requests = shared.requests();
        Ok(MountEnding { asker: shared.asker.lock().take(), closed, requests })
    }
}

impl MountEnding {
    /// Answers the client that requested the end.
    pub fn report(mut self, how: &Result<Value>) {
        if let Some(asker) = &mut self.asker {
            asker.answer(how);
        }
    }
}

impl MountShared {
    /// Ends the mount at the first signal, even if it is in use.
    fn end_on(&self, mut signals: Signals, ended: &Sender<io::Result<()>>) {
        if signals.forever().next().is_none() {
            return;
        }
        if self.unmount(UnmountFlags::empty()).is_ok() {
            return;
        }
        // The mount is in use: keep the data that programs have written. From the publication on
        // they get errors, and when the process ends they are cut off.
        self.write_pages();
        let _ = self.unmount(UnmountFlags::DETACH);
        let _ = ended.send(Ok(()));
    }

    /// Ends a mount whose requests are no longer answered: pending and later requests fail. Without
    /// the superuser's rights pending requests fail only once this process has ended.
    fn abort(&self) {
        let mut device = [PollFd::new(&*self.device, PollFlags::IN)];
        let polled = poll(&mut device, Some(&Timespec::default()));
        if polled.is_ok() && device[0].revents().contains(PollFlags::ERR) {
            // It is gone. Another unmount would take away the file system beneath.
            return;
        }
        let _ = self.unmount(UnmountFlags::FORCE | UnmountFlags::DETACH);
    }

    /// Makes the kernel write back its dirty pages.
    fn write_pages(&self) {
        if let Ok(root) = std::fs::File::open(&self.mountpoint) {
            let _ = rustix::fs::syncfs(root.as_fd());
        }
    }

    fn unmount(&self, flags: UnmountFlags) -> Result<()> {
        match rustix::mount::unmount(&self.mountpoint, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(in_use()),
            // Only the superuser may; FUSE's helper does it for the mount's owner.
            Err(rustix::io::Errno::PERM) => self.unmount_by_helper(flags),
            Err(errno) => Err(Error::io(errno.into(), "unmount")),
        }
    }

    fn unmount_by_helper(&self, flags: UnmountFlags) -> Result<()> {
        let is_lazy = flags.contains(UnmountFlags::DETACH);
        let output = unmount_by_helper(&self.mountpoint, is_lazy)
            .map_err(|error| Error::io(error, "run fusermount3"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // The helper has one exit code for all causes, and its messages are not translated.
        let busy = io::Error::from(rustix::io::Errno::BUSY).to_string();
        if busy.starts_with(said.rsplit(": ").next().unwrap_or_default()) {
            return Err(in_use());
        }
        Err(Error::new(Kind::Conflict, said))
    }

    fn answer_requests(&self) {
        while let Ok((request, mut asker)) = self.listener.next() {
            match request {
                ControlRequest::Commit(name) => asker.answer(&self.commit(&name)),
                ControlRequest::Compact => asker.answer(&self.compact()),
                ControlRequest::CheckWriter => asker.answer(&self.check_writer()),
                ControlRequest::Statistics => asker.answer(&self.statistics()),
                ControlRequest::End => {
                    if let Err(error) = self.write_before_end() {
                        asker.answer(&Err(error));
                        continue;
                    }
                    // Before the end, which may come at once.
                    *self.asker.lock() = Some(asker);
                    if let Err(error) = self.unmount(UnmountFlags::empty())
                        && let Some(mut asker) = self.asker.lock().take()
                    {
                        asker.answer(&Err(error));
                    }
                }
            }
        }
    }

    /// Writes all changes of the session to the store. Fails only if the store has no room for them
    /// and the mount therefore goes on: once it is unmounted, they could only be lost. After other
    /// errors the session accepts no changes, so nothing is gained by staying mounted.
    fn write_before_end(&self) -> Result<()> {
        let Some(session) = self.state.view.session() else { return Ok(()) };
        self.write_pages();
        let Err(error) = session.flush() else { return Ok(()) };
        if error.kind() != Kind::NoSpace {
            return Ok(());
        }
        let word = shell_word(self.mountpoint.as_os_str().as_bytes());
        Err(error.within(format!(
            "{} is still mounted, since the store has no room for its changes: free space, for \
             example by `esker gc`, then repeat `esker umount {word}`; `fusermount3 -u {word}` gives \
             up changes that are only in memory",
            self.mountpoint.display()
        )))
    }

    fn check_writer(&self) -> Result<Value> {
        // A sync looks for another writer, and stops this one if there is one.
        self.state.view.session().map_or(Ok(()), |session| session.sync())?;
        Ok(json!({"writes": true}))
    }

    /// The number of requests by kind, if the mount counts them.
    fn requests(&self) -> Option<Value> {
        self.state.statistics.as_ref().map(RequestStatistics::report)
    }

    fn statistics(&self) -> Result<Value> {
        let requests = self.requests().ok_or_else(|| {
            Error::new(Kind::Invalid, "the mount does not count requests: mount with --statistics")
        })?;
        Ok(json!({"requests": requests}))
    }

    fn compact(&self) -> Result<Value> {
        let session =
            self.state.view.session().ok_or_else(|| {
                Error::new(Kind::ReadOnly, "compact a mounted snapshot by its name")
            })?;
        session.compact()?;
        Ok(json!({"compacted": session.set().to_string()}))
    }

    fn commit(&self, name: &str) -> Result<Value> {
        let session = self.state.view.session().ok_or_else(|| {
            Error::new(Kind::ReadOnly, "a mounted snapshot has nothing to publish")
        })?;
        self.write_pages();
        let set = session.snapshot(name)?;
        Ok(json!({"published": name, "set": set.to_string()}))
    }
}

fn in_use() -> Error {
    Error::new(Kind::Conflict, "the mount is in use: leave it and close its files first")
}

/// The error of the system call `what`, for example "mount at", for a mount at `mountpoint`.
pub(crate) fn failed(what: &str, mountpoint: &Path, error: &io::Error) -> Error {
    let place = format!("{what} {}", mountpoint.display());
    if !Path::new(DEVICE).exists() {
        let context = format!("{place}: this machine has no {DEVICE}: load the module `fuse`");
        return Error::new(Kind::Unsupported, context);
    }
    match open_device() {
        Err(denied) if Kind::of_io(&denied) == Kind::Denied => {
            let context = format!(
                "{place}: you may not open {DEVICE}: ask the administrator for mode 666, or for its \
                 group"
            );
            Error::new(Kind::Denied, context)
        }
        // Messages of helpers end with a line feed.
        _ => Error::new(Kind::of_io(error), format!("{place}: {}", error.to_string().trim())),
    }
}

fn open_device() -> io::Result<std::fs::File> {
    std::fs::File::options().read(true).write(true).open(DEVICE)
}

fn config_of(view: &NamespaceView, options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("esker".into()),
        MountOption::DefaultPermissions,
        // Access times change only when they are set explicitly.
        MountOption::NoAtime,
    ];
    if rustix::process::geteuid().is_root() {
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    if view.session().is_none() {
        config.mount_options.push(MountOption::RO);
    }
    config.acl = if options.allows_others { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}

fn text_of(errno: fuser::Errno) -> io::Error {
    io::Error::from_raw_os_error(i32::from(errno))
}

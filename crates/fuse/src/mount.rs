// SPDX-License-Identifier: Apache-2.0
//! Mount: serves a view at a directory, from the first request to the last.
//!
//! After its end (`mount_run`) the caller publishes the session, if there is one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use esker_base::{Clock, Error, Kind, Result, shell_word};
use esker_fs::session::view::NamespaceView;
use fuser::{Config, Errno, INodeNo, MountOption, SessionACL};
use serde_json::{Value, json};

use crate::control::ControlListener;
use crate::failed_change::expire_names;
use crate::file::InPlacePolicy;
use crate::mount_run::{MountContent, MountEnding, MountRun};
use crate::mount_state::{MountSetup, MountState};
use crate::mounted_directory::MountedDirectory;
use crate::prune::prune_until;
use crate::server::{Server, Transport, TransportChoice};
use crate::statistics::RequestStatistics;

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
    /// [`crate::control::ControlRequest::Statistics`].
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
    running: MountRun<MountState>,
    known_files_max: usize,
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
        let directory = MountedDirectory::new(mountpoint, server.as_fd())?;
        let running = MountRun::new(state, directory, listener);
        Ok(Self { server, running, known_files_max: options.known_files_max })
    }

    /// The transport of requests, and the reason if it is not the requested one.
    #[must_use]
    pub fn transport(&self) -> &TransportChoice {
        self.server.choice()
    }

    /// Returns a function that counts the files that the kernel knows.
    pub fn known_files(&self) -> impl Fn() -> usize + Send + use<> {
        let state = self.running.content().clone();
        move || state.nodes.count()
    }

    /// Answers the kernel until the mount ends.
    ///
    /// # Errors
    /// Those that the kernel reports; the view stays as it was.
    pub fn run(self) -> Result<MountEnding> {
        let Self { server, running, known_files_max } = self;
        running.run(known_files_max, move |ends| server.answer_kernel(ends))
    }
}

impl MountContent for MountState {
    fn publish(&self, name: &str, directory: &MountedDirectory) -> Result<Value> {
        let session = self.view.session().ok_or_else(|| {
            Error::new(Kind::ReadOnly, "a mounted snapshot has nothing to publish")
        })?;
        directory.write_pages();
        self.receive_pages();
        let set = session.snapshot(name)?;
        Ok(json!({"published": name, "set": set.to_string()}))
    }

    fn compact(&self) -> Result<Value> {
        let session = self
            .view
            .session()
            .ok_or_else(|| Error::new(Kind::ReadOnly, "compact a mounted snapshot by its name"))?;
        session.compact()?;
        Ok(json!({"compacted": session.set().to_string()}))
    }

    fn receive_pages(&self) {
        let notifier = self.notifier.lock().clone();
        let Some(notifier) = notifier else { return };
        for node in self.nodes.open() {
            // Pages that are dirty are sent before they are invalid.
            if self.is_open_file(node.number, |opened| opened.may_be_dirty()) {
                let _ = notifier.inval_inode(INodeNo(node.number), 0, 0);
            }
        }
    }

    /// A sync looks for another writer, and stops this one if there is one.
    fn check_writer(&self) -> Result<()> {
        self.view.session().map_or(Ok(()), |session| session.sync())
    }

    fn requests(&self) -> Option<Value> {
        self.statistics.as_ref().map(RequestStatistics::report)
    }

    /// Writes all changes of the session to the store. Fails only if the store has no room for them
    /// and the mount therefore goes on: once it is unmounted, they could only be lost. After other
    /// errors the session accepts no changes, so nothing is gained by staying mounted.
    fn write_before_end(&self, directory: &MountedDirectory) -> Result<()> {
        let Some(session) = self.view.session() else { return Ok(()) };
        directory.write_pages();
        let Err(error) = session.flush() else { return Ok(()) };
        if error.kind() != Kind::NoSpace {
            return Ok(());
        }
        let word = shell_word(directory.mountpoint.as_os_str().as_bytes());
        Err(error.within(format!(
            "{} is still mounted, since the store has no room for its changes: free space, for \
             example by `esker gc`, then repeat `esker umount {word}`; `fusermount3 -u {word}` gives \
             up changes that are only in memory",
            directory.mountpoint.display()
        )))
    }

    fn work_until(&self, end: &Receiver<()>) {
        self.reclaim_until(end);
    }

    fn prune_until(&self, device: &OwnedFd, known_max: usize, end: &Receiver<()>) {
        prune_until(&self.nodes, device, known_max, end);
    }

    fn close_all(&self) -> Result<(), Errno> {
        self.close_files()
    }
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
    let mut config = kernel_config(&options.source, options.allows_others, options.threads);
    if view.session().is_none() {
        config.mount_options.push(MountOption::RO);
    }
    config
}

/// The kernel's part of the configuration of a mount that `source` names.
pub(crate) fn kernel_config(source: &str, allows_others: bool, threads: usize) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source.to_owned()),
        MountOption::Subtype("esker".into()),
        MountOption::DefaultPermissions,
        // Access times change only when they are set explicitly.
        MountOption::NoAtime,
    ];
    if rustix::process::geteuid().is_root() {
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    config.acl = if allows_others { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads.max(1));
    config.clone_fd = true;
    config
}

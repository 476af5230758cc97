//! Mount: a view at a directory, from the first request to the last.
//!
//! A mount ends by `umount`, `fusermount3 -u`, a request to end it (`control`) or a signal. The
//! first three fail while somebody uses it; a signal takes it away from them. Once it has ended all
//! files are closed, and whoever runs it publishes what is to be published.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use esker_base::{Clock, Error, Kind, Result};
use fuser::{Config, MountOption, SessionACL};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::{Asker, Listener, Request};
use crate::driver::Driver;
use crate::file::InPlace;
use crate::front::{Front, Setup};
use crate::prune::prune_until;
use crate::view::View;

/// Through which the kernel asks.
const DEVICE: &str = "/dev/fuse";

/// How to mount.
pub struct MountOptions {
    /// What is shown, for `mount` and `df`.
    pub source: String,
    /// The name as which a session will be published, or of the snapshot.
    pub name: String,
    /// Threads that answer the kernel; at least 1.
    pub threads: usize,
    /// Whether the kernel collects small writes before it passes them on.
    pub writes_back: bool,
    /// Which new files of a session the kernel writes in the store, if that is a directory.
    pub in_place: InPlace,
    /// Whether other users see it.
    pub allows_others: bool,
    /// Files that the kernel may know before it is asked to forget some: [`KNOWN_FILES_MAX`], but
    /// for tests.
    pub known_files_max: usize,
    /// The directory of the store, whose room is the mount's.
    pub store: Option<PathBuf>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Takes errors that users did not cause: a store that does not answer, bytes that are wrong.
    pub report: Box<dyn Fn(&Error) + Send + Sync>,
}

/// A view that is mounted.
pub struct Mount {
    session: fuser::Session<Driver>,
    shared: Arc<Shared>,
    known_files_max: usize,
}

/// What the threads of a mount share.
struct Shared {
    front: Arc<Front>,
    mountpoint: PathBuf,
    listener: Listener,
    /// Who asked for the end and waits until everything is done.
    asker: Mutex<Option<Asker>>,
}

/// A mount that has ended. Whoever asked for it waits until this is told how it went.
#[must_use]
pub struct Ending {
    asker: Option<Asker>,
    /// Whether everything that was open could be closed.
    pub closed: Result<()>,
}

/// Whether this machine can mount anything of this kind.
#[must_use]
pub fn is_supported() -> bool {
    open_device().is_ok()
}

impl Mount {
    /// Mounts `view` at `mountpoint`. Requests wait until [`Mount::run`].
    ///
    /// # Errors
    /// `Invalid` if it is no directory; `Denied` or `Unavailable` as the kernel answers.
    pub fn new(view: View, mountpoint: &Path, options: MountOptions) -> Result<Self> {
        let io = |what: &str, error| Error::io(error, format!("{what} {}", mountpoint.display()));
        let mountpoint =
            mountpoint.canonicalize().map_err(|error| io("find the directory", error))?;
        let listener = Listener::new().map_err(|error| io("listen for requests to", error))?;
        let set = view.session().map(|session| session.set().to_string());
        let status = listener.status(&options.name, set);
        let config = config_of(&view, &options);
        let setup = Setup {
            status,
            clock: options.clock,
            store: options.store,
            writes_back: options.writes_back,
            in_place: options.in_place,
            report: options.report,
        };
        let front = Arc::new(Front::new(view, setup));
        let session = fuser::Session::new(Driver(front.clone()), &mountpoint, &config)
            .map_err(|error| failed("mount at", &mountpoint, &error))?;
        let is_first = front.notifier.set(session.notifier()).is_ok();
        assert!(is_first, "a front is mounted once");
        let shared = Shared { front, mountpoint, listener, asker: Mutex::default() };
        Ok(Self { session, shared: Arc::new(shared), known_files_max: options.known_files_max })
    }

    /// Counts the files that the kernel knows, whenever it is called.
    pub fn known_files(&self) -> impl Fn() -> usize + Send + use<> {
        let front = self.shared.front.clone();
        move || front.nodes.count()
    }

    /// Answers the kernel until the mount ends.
    ///
    /// # Errors
    /// What the kernel reports; the view is as it was left.
    pub fn run(self) -> Result<Ending> {
        let Self { session, shared, known_files_max } = self;
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|error| Error::io(error, "wait for signals"))?;
        let stop = signals.handle();
        let (ends, end) = std::sync::mpsc::channel();
        let (on_signals, taken) = (shared.clone(), ends.clone());
        // These end with the process: nobody can ask a mount that is gone, and who has files open
        // in one that was taken away is answered until then.
        drop(std::thread::spawn(move || on_signals.end_on(signals, &taken)));
        let on_requests = shared.clone();
        drop(std::thread::spawn(move || on_requests.answer_requests()));
        let (ends_reclaiming, end_of_mount) = std::sync::mpsc::channel();
        let front = shared.front.clone();
        let reclaiming = std::thread::spawn(move || front.reclaim_until(&end_of_mount));
        let device = session.as_fd().try_clone_to_owned();
        let device = device.map_err(|error| Error::io(error, "open the mount's device again"))?;
        let (ends_pruning, end_of_mount) = std::sync::mpsc::channel();
        let front = shared.front.clone();
        drop(std::thread::spawn(move || {
            prune_until(&front.nodes, &device, known_files_max, &end_of_mount);
        }));
        drop(std::thread::spawn(move || answer_kernel(session, &ends)));
        let ran = end.recv().unwrap_or_else(|_| Err(io::Error::other("the mount's thread died")));
        stop.close();
        drop((ends_reclaiming, ends_pruning));
        // A panic in a thread has been reported where it happened.
        let _ = reclaiming.join();
        let closed = shared.front.close_all();
        let closed = closed.map_err(|errno| {
            Error::new(Kind::DeviceFailed, format!("close what was open: {}", text_of(errno)))
        });
        match ran {
            // A thread that reads a request at the moment of the unmount may get this error.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::CONNABORTED.raw_os_error()) => {}
            Err(error) => {
                // Nobody answers any more, so the mount must not stay.
                let _ = shared.unmount(UnmountFlags::DETACH);
                return Err(Error::io(error, "answer the kernel"));
            }
            Ok(()) => {}
        }
        Ok(Ending { asker: shared.asker.lock().take(), closed })
    }
}

impl Ending {
    /// Tells whoever asked for the end how it went.
    pub fn tell(mut self, how: &Result<Value>) {
        if let Some(asker) = &mut self.asker {
            asker.answer(how);
        }
    }
}

impl Shared {
    /// Ends the mount at the first signal, whoever uses it.
    fn end_on(&self, mut signals: Signals, ended: &Sender<io::Result<()>>) {
        if signals.forever().next().is_none() {
            return;
        }
        if self.unmount(UnmountFlags::empty()).is_ok() {
            return;
        }
        // Somebody uses it: what they have written is kept. From the publishing on they get errors,
        // and from the end of the process on nothing.
        self.write_pages();
        let _ = self.unmount(UnmountFlags::DETACH);
        let _ = ended.send(Ok(()));
    }

    /// Lets the kernel write what programs have put into its pages.
    fn write_pages(&self) {
        if let Ok(root) = std::fs::File::open(&self.mountpoint) {
            let _ = rustix::fs::syncfs(root.as_fd());
        }
    }

    fn unmount(&self, flags: UnmountFlags) -> Result<()> {
        match rustix::mount::unmount(&self.mountpoint, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(in_use()),
            // Only the superuser may; the helper of the FUSE package does it for its owner.
            Err(rustix::io::Errno::PERM) => self.unmount_by_helper(flags),
            Err(errno) => Err(Error::io(errno.into(), "unmount")),
        }
    }

    fn unmount_by_helper(&self, flags: UnmountFlags) -> Result<()> {
        let mut helper = std::process::Command::new("fusermount3");
        helper.arg("-u");
        if flags.contains(UnmountFlags::DETACH) {
            helper.arg("-z");
        }
        let output = helper.arg("--").arg(&self.mountpoint).output();
        let output = output.map_err(|error| Error::io(error, "run fusermount3"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // The helper's exit code is the same for all reasons, and it has no translations.
        let busy = io::Error::from(rustix::io::Errno::BUSY).to_string();
        if busy.starts_with(said.rsplit(": ").next().unwrap_or_default()) {
            return Err(in_use());
        }
        Err(Error::new(Kind::Conflict, said))
    }

    fn answer_requests(&self) {
        while let Ok((request, mut asker)) = self.listener.next() {
            match request {
                Request::Commit(name) => asker.answer(&self.commit(&name)),
                Request::Compact => asker.answer(&self.compact()),
                Request::End => {
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

    fn compact(&self) -> Result<Value> {
        let session = self.front.view.session().ok_or_else(|| {
            Error::new(Kind::ReadOnly, "a mounted snapshot is compacted by its name")
        })?;
        session.compact()?;
        Ok(json!({"compacted": session.set().to_string()}))
    }

    fn commit(&self, name: &str) -> Result<Value> {
        let session = self.front.view.session().ok_or_else(|| {
            Error::new(Kind::ReadOnly, "a mounted snapshot has nothing to publish")
        })?;
        self.write_pages();
        let set = session.snapshot(name)?;
        Ok(json!({"published": name, "set": set.to_string()}))
    }
}

/// Answers the kernel until the mount is gone, says so on `ended`, and never returns: dropping the
/// session would unmount its directory once more, and with it the file system beneath.
fn answer_kernel(session: fuser::Session<Driver>, ended: &Sender<io::Result<()>>) {
    let ran = match session.spawn() {
        Ok(background) => {
            // The rest of `background`, which unmounts when it is dropped, stays here.
            let ran = background.guard.join();
            let _ = ended.send(ran.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
            loop {
                std::thread::park();
            }
        }
        Err(error) => Err(error),
    };
    let _ = ended.send(ran);
}

fn in_use() -> Error {
    Error::new(Kind::Conflict, "somebody uses the mount: leave it and close its files first")
}

/// The error of the system call `what` ("mount at") of a mount at `mountpoint`.
fn failed(what: &str, mountpoint: &Path, error: &io::Error) -> Error {
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
        // What helpers say ends with a line feed.
        _ => Error::new(Kind::of_io(error), format!("{place}: {}", error.to_string().trim())),
    }
}

fn open_device() -> io::Result<std::fs::File> {
    std::fs::File::options().read(true).write(true).open(DEVICE)
}

fn config_of(view: &View, options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("esker".into()),
        MountOption::DefaultPermissions,
        // Times of access change when they are set and at no other time.
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

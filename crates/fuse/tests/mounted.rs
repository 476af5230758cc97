// SPDX-License-Identifier: Apache-2.0
//! A view mounted by a thread of the test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::repository::Repository;
use esker_fs::session::view::NamespaceView;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fuse::{
    InPlacePolicy, KNOWN_FILES_MAX, Mount, MountOptions, Transport, TransportChoice, is_supported,
};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

/// Interval and maximum number of checks for the end of a mount's use.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS_MAX: u32 = 1_000;

/// A mount that ends when it is dropped.
pub struct Mounted {
    directory: TempDir,
    /// Counts the files that the kernel knows.
    pub known_files: Box<dyn Fn() -> usize + Send>,
    /// The transport of its requests.
    pub transport: TransportChoice,
    serving: Option<JoinHandle<Result<()>>>,
}

/// True if mounts work here; prints a message if not.
pub fn can_mount() -> bool {
    if !is_supported() {
        println!("skipped: this machine has no /dev/fuse, or it may not be used");
        return false;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only the superuser works in the superuser's session, and unmounts it");
    }
    is_root
}

/// The repository in `store`.
pub fn repository(store: SharedStore) -> Repository {
    Repository::with(store, 1 << 20, Arc::new(SystemClock))
}

/// The options of a session for a mount.
pub fn options() -> SessionOptions {
    SessionOptions { identity: Identity::root(), ..SessionOptions::default() }
}

/// The transport of mounts whose test does not choose one: `ESKER_TEST_TRANSPORT`.
pub fn transport() -> Transport {
    match std::env::var("ESKER_TEST_TRANSPORT").as_deref() {
        Ok("uring") => Transport::Uring,
        Ok("auto") => Transport::Auto,
        Ok("threads") | Err(_) => Transport::Threads,
        Ok(other) => panic!("ESKER_TEST_TRANSPORT={other}: uring, auto or threads"),
    }
}

/// A new session in memory.
pub fn session() -> Arc<Session> {
    let repository = repository(Arc::new(MemoryStore::new()));
    Arc::new(repository.begin(&[], options()).expect("begin"))
}

impl Mounted {
    /// Mounts `view`.
    pub fn new(view: NamespaceView) -> Self {
        Self::with(view, InPlacePolicy::default())
    }

    /// Mounts `view`; the kernel writes the files that `in_place` selects directly in the store.
    pub fn with(view: NamespaceView, in_place: InPlacePolicy) -> Self {
        Self::with_options(view, |options| options.in_place = in_place)
    }

    /// Mounts `view`; the kernel collects small writes.
    pub fn writing_back(view: NamespaceView) -> Self {
        Self::with_options(view, |options| options.writes_back = true)
    }

    /// Mounts `view` with options adjusted by `change`.
    pub fn with_options(view: NamespaceView, change: impl FnOnce(&mut MountOptions)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path().join("at");
        std::fs::create_dir(&at).expect("a new directory");
        let mount = Self::try_at(view, &at, change).expect("mount");
        let known_files = Box::new(mount.known_files());
        let transport = mount.transport().clone();
        let serving = std::thread::spawn(move || mount.run().and_then(|ending| ending.closed));
        Self { directory, known_files, transport, serving: Some(serving) }
    }

    /// Mounts `view` at `at`, with options adjusted by `change`; no thread answers requests yet.
    pub fn try_at(
        view: NamespaceView,
        at: &Path,
        change: impl FnOnce(&mut MountOptions),
    ) -> Result<Mount> {
        let mut options = MountOptions {
            source: "test".into(),
            name: "test".into(),
            transport: transport(),
            threads: 3,
            writes_back: false,
            in_place: InPlacePolicy::default(),
            allows_others: true,
            known_files_max: KNOWN_FILES_MAX,
            counts_requests: false,
            store: None,
            clock: Arc::new(SystemClock),
            report: Box::new(|error| println!("reported: {error}")),
        };
        change(&mut options);
        Mount::new(view, at, options)
    }

    /// A session in memory, mounted.
    pub fn session() -> (Self, Arc<Session>) {
        let session = session();
        (Self::new(NamespaceView::Session(session.clone())), session)
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("at")
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// Waits for the end of a mount that somebody else ends; returns its error.
    pub fn wait(mut self) -> Result<()> {
        self.serving.take().expect("it runs").join().expect("no panic")
    }

    /// Unmounts; returns the outcome of closing all open files.
    pub fn end(self) -> Result<()> {
        let mut looks = 0;
        // A process that another test starts holds all open files of this one until it runs its
        // program.
        while let Err(errno) = rustix::mount::unmount(self.root(), UnmountFlags::empty()) {
            assert_eq!(errno, Errno::BUSY);
            looks += 1;
            assert!(looks < LOOKS_MAX, "somebody uses it");
            std::thread::sleep(LOOK);
        }
        self.wait()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.root(), UnmountFlags::DETACH);
    }
}

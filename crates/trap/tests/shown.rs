// SPDX-License-Identifier: Apache-2.0
//! Shown: a session that a thread of the test, and the processes it starts, see at a directory.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Error, Result};
use esker_fs::inode::Inode;
use esker_fs::repository::Repository;
use esker_fs::session::view::NamespaceView;
use esker_fs::session::{NewRoot, Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_trap::TrapOptions;
use tempfile::TempDir;

/// True if namespaces can be shown here; prints a message if not.
pub fn can_show() -> bool {
    match esker_trap::is_available() {
        Ok(()) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

/// The repository in `store`.
pub fn repository(store: SharedStore) -> Repository {
    Repository::with(store, 1 << 20, Arc::new(SystemClock))
}

/// The options of a session of this user.
pub fn options() -> SessionOptions {
    let identity = Identity::of_process();
    let new_root = NewRoot { owner: Some((identity.uid, identity.gid)), mode: 0o755 };
    SessionOptions { identity, new_root, ..SessionOptions::default() }
}

/// A new session in memory.
pub fn session() -> Arc<Session> {
    let repository = repository(Arc::new(MemoryStore::new()));
    Arc::new(repository.begin(&[], options()).expect("begin"))
}

/// The session as it is shown.
pub fn of(session: &Arc<Session>) -> NamespaceView {
    NamespaceView::Session(session.clone())
}

/// Shows `view` to `work`, which gets the place, a directory in `scratch`.
pub fn show_in<T: Send>(
    scratch: &Path,
    view: NamespaceView,
    work: impl FnOnce(&Path) -> T + Send,
) -> Result<T> {
    show_preloading(scratch, view, preloads(), work)
}

/// As [`show_in`], with a library to preload if asked for.
pub fn show_preloading<T: Send>(
    scratch: &Path,
    view: NamespaceView,
    preload: bool,
    work: impl FnOnce(&Path) -> T + Send,
) -> Result<T> {
    let place = scratch.join("place");
    let report = |error: &Error| println!("reported: {error}");
    let options = TrapOptions {
        view,
        place: place.clone(),
        spool: scratch.to_owned(),
        threads: 3,
        preload,
        report: Box::new(report),
    };
    esker_trap::run(options, |library| {
        LIBRARY.set(library.map(Path::to_owned));
        work(&place)
    })
}

/// True if the programs of all tests load the library that makes calls about other files fast.
pub fn preloads() -> bool {
    std::env::var_os("ESKER_TEST_PRELOAD").is_some()
}

/// Calls `work` with the library for programs that see what is shown in this thread.
pub fn with_library<T>(work: impl FnOnce(&Path) -> T) -> T {
    LIBRARY.with_borrow(|library| work(library.as_ref().expect("there is a library")))
}

thread_local! {
    /// The library for programs that see what is shown in this thread.
    static LIBRARY: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// A command for a program that sees what is shown in this thread, if anything is.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let library = LIBRARY.with_borrow(Clone::clone).filter(|_| preloads());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// Shows `view` to `work`, which gets the place.
pub fn try_show<T: Send>(view: NamespaceView, work: impl FnOnce(&Path) -> T + Send) -> Result<T> {
    let scratch = tempfile::tempdir().expect("a directory");
    let place = scratch.path().join("place");
    let done = show_in(scratch.path(), view, work);
    let left = left_in(&scratch);
    assert_eq!(left, [place], "nothing but the empty place is left");
    done
}

/// As [`try_show`], which must succeed.
pub fn show<T: Send>(view: NamespaceView, work: impl FnOnce(&Path) -> T + Send) -> T {
    try_show(view, work).expect("show")
}

fn left_in(scratch: &TempDir) -> Vec<PathBuf> {
    let entries = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).expect("list");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let left = entries(scratch.path());
    left.iter().for_each(|path| assert!(entries(path).is_empty()));
    left
}

/// Runs a shell script in `place`; returns its output.
pub fn shell(place: &Path, script: &str) -> String {
    let mut shell = command("sh");
    // If make runs the tests, a make below it finds these variables and prints its directory.
    shell.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let output = shell.arg("-ec").arg(script).current_dir(place).output();
    text_of(&output.expect("a shell"), script)
}

/// The output of a program that succeeded.
pub fn text_of(output: &Output, what: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

/// The bytes of the file at `path` of the session.
pub fn content(session: &Session, path: &str) -> Vec<u8> {
    let inode = inode(session, path);
    let mut bytes = Vec::new();
    let read = session.namespace().read_all(&inode, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    read.expect("read");
    bytes
}

/// The record of the file at `path` of the session.
pub fn inode(session: &Session, path: &str) -> Inode {
    session.namespace().find(path, FollowLinks::Yes).expect("find").inode
}

/// The spool of the namespace that is shown at `place`.
pub fn spool_beside(place: &Path) -> PathBuf {
    let beside = fs::read_dir(place.parent().expect("a parent")).expect("list");
    let mut beside = beside.map(|entry| entry.expect("an entry").path());
    let is_spool = |path: &PathBuf| path.to_string_lossy().contains("/esker-spool-");
    beside.find(is_spool).expect("a spool")
}

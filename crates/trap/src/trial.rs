// SPDX-License-Identifier: Apache-2.0
//! Trial: shows an empty namespace to a small program, to find out whether supervision works here.
//!
//! A kernel may accept the filter and still refuse what a supervisor needs later: reading the
//! memory of another process, or giving it a descriptor. So the trial is a program that writes a
//! file of the namespace and reads it again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use esker_base::store::MemoryStore;
use esker_base::{Clock, Error, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::view::NamespaceView;
use esker_fs::session::{NewRoot, SessionOptions};
use esker_fs::stack::identity::Identity;
use parking_lot::Mutex;

use crate::supervisor::{TrapOptions, run};

/// Cache of the trial's repository.
const CACHE_BYTES: u64 = 1 << 20;

/// Writes a file and reads it; its argument is the directory.
const SCRIPT: &str = "echo word > \"$0/file\" && read word < \"$0/file\" && test \"$word\" = word";

/// Runs a small program that uses files of a namespace in memory. Its directory and its spool are
/// below `scratch` for that time.
///
/// # Errors
/// `Unsupported` if the kernel, or a container, hands no calls to a supervisor, or does not let it
/// answer them; `Conflict` inside of another supervisor; else those of `scratch`.
pub fn try_program(scratch: &Path, clock: Arc<dyn Clock>) -> Result<()> {
    let failed = |error| Error::io(error, format!("make a directory in {}", scratch.display()));
    let directory = tempfile::Builder::new().prefix("esker-trial-").tempdir_in(scratch);
    let directory = directory.map_err(failed)?;
    let place = directory.path().join("files");
    let reported = Arc::new(Mutex::new(None));
    let options = TrapOptions {
        view: NamespaceView::Session(Arc::new(new_session(clock)?)),
        place: place.clone(),
        spool: directory.path().to_owned(),
        threads: 1,
        preload: false,
        report: {
            let reported = reported.clone();
            Box::new(move |error| *reported.lock() = Some(error.to_string()))
        },
    };
    let mut program = Command::new("sh");
    program.arg("-c").arg(SCRIPT).arg(&place).current_dir("/").stdin(Stdio::null());
    let output = run(options, |_| program.output())?;
    let output = output.map_err(|error| Error::io(error, "run the shell `sh`"))?;
    let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let problem = reported.lock().take();
    let why = match (output.status.success(), problem) {
        (true, None) => return Ok(()),
        (_, Some(problem)) => problem,
        (false, None) if printed.is_empty() => format!("its outcome was {}", output.status),
        (false, None) => printed,
    };
    let what = format!(
        "the kernel hands system calls to a supervisor, but a program could not write and read a file \
         ({why}): the supervisor must be allowed to read memory of the programs that it starts \
         (process_vm_readv; see `sysctl kernel.yama.ptrace_scope`, and what the container allows)"
    );
    Err(Error::new(Kind::Unsupported, what))
}

/// An empty session of this user in memory.
fn new_session(clock: Arc<dyn Clock>) -> Result<esker_fs::session::Session> {
    let identity = Identity::of_process();
    let new_root = NewRoot { owner: Some((identity.uid, identity.gid)), mode: 0o755 };
    let options = SessionOptions { identity, new_root, ..SessionOptions::default() };
    let store = Arc::new(MemoryStore::new());
    Repository::with(store, CACHE_BYTES, clock).begin(&[], options)
}

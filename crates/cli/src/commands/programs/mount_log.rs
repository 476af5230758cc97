// SPDX-License-Identifier: Apache-2.0
//! Mount log: records the errors of a background mount.
//!
//! The log is the process's standard error, by which `esker mounts` finds it. Unless the user names
//! a file, it is a file in the user's state directory, or else in the directory for temporary
//! files; it is removed with the mount if nothing went
//! wrong.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use esker_base::{Error, Result};

/// An open log.
pub struct MountLog {
    file: File,
    /// Its path, if this process chose it.
    chosen: Option<PathBuf>,
    /// Bytes of its first line, which does not say that anything went wrong.
    opening_bytes: u64,
}

impl MountLog {
    /// Opens the log that the user names.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let failure = |error| Error::io(error, format!("open {}", path.display()));
        Ok(Self { file: file.map_err(failure)?, chosen: None, opening_bytes: 0 })
    }

    /// Creates a log. If that is impossible, errors are discarded.
    pub fn choose() -> Result<Self> {
        let name = format!("esker-mount-{}.log", std::process::id());
        for directory in [state_directory(), Some(std::env::temp_dir())].into_iter().flatten() {
            let path = directory.join(&name);
            // Only a new file: in a shared directory another user may have created that name.
            let made = std::fs::create_dir_all(&directory)
                .and_then(|()| File::options().create_new(true).append(true).open(&path));
            if let Ok(file) = made {
                return Ok(Self { file, chosen: Some(path), opening_bytes: 0 });
            }
        }
        let nowhere = File::options().write(true).open("/dev/null");
        let failure = |error| Error::io(error, "open /dev/null");
        Ok(Self { file: nowhere.map_err(failure)?, chosen: None, opening_bytes: 0 })
    }

    /// Writes the first line, which is no reason to keep the log.
    pub fn open_with(&mut self, text: &str) -> Result<()> {
        let line = format!("esker: {text}\n");
        self.opening_bytes = line.len() as u64;
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|error| Error::io(error, "write the log"))
    }

    /// Detaches from the terminal and from the process that waits for the first line.
    pub fn leave_terminal(&self) -> Result<()> {
        let failed = |errno: rustix::io::Errno| Error::io(errno.into(), "leave the terminal");
        // Fails only for the leader of a group, and a child is not one.
        let _ = rustix::process::setsid();
        let _ = std::io::stdout().flush();
        rustix::stdio::dup2_stdout(&self.file).map_err(failed)?;
        rustix::stdio::dup2_stderr(&self.file).map_err(failed)
    }

    /// Removes a log that this process chose and did not use. Call it last: later errors would be
    /// lost.
    pub fn discard_if_unused(&self) {
        let unused = |metadata: std::fs::Metadata| metadata.len() <= self.opening_bytes;
        let is_unused = self.file.metadata().is_ok_and(unused);
        if let (Some(path), true) = (&self.chosen, is_unused) {
            // A leftover short file does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The directory for logs of a user's programs.
/// Source: XDG Base Directory Specification, `XDG_STATE_HOME`.
fn state_directory() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("esker"))
}

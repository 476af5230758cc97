// SPDX-License-Identifier: Apache-2.0
//! Search path: finds programs as a shell does, in the directories of `PATH`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// The file that runs as `word`: the path itself if it has a slash, else the first of that name on
/// `PATH` that this user may run.
pub fn find_program(word: &OsStr) -> Option<PathBuf> {
    if word.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(word));
    }
    let path = std::env::var_os("PATH")?;
    find_in(&path, word)
}

fn find_in(path: &OsStr, word: &OsStr) -> Option<PathBuf> {
    if word.is_empty() {
        return None;
    }
    std::env::split_paths(path)
        // An empty entry is the working directory.
        .map(|directory| if directory.as_os_str().is_empty() { ".".into() } else { directory })
        .map(|directory| directory.join(word))
        .find(|candidate| candidate.is_file() && may_run(candidate))
}

/// True if this user may run the file at `path`.
pub fn may_run(path: &Path) -> bool {
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// True if this user may write to the directory at `path`.
pub fn may_write(path: &Path) -> bool {
    accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_program_that_may_run_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for (name, mode) in [("one", 0o644), ("two", 0o755), ("three", 0o755)] {
            std::fs::create_dir(at(name)).expect("a directory");
            let program = at(name).join("program");
            std::fs::write(&program, "x").expect("a file");
            std::fs::set_permissions(program, PermissionsExt::from_mode(mode)).expect("a mode");
        }
        let path = std::env::join_paths(["none", "one", "two", "three"].map(at)).expect("a path");
        let found = |word: &str| find_in(&path, OsStr::new(word));
        assert_eq!(found("program"), Some(at("two").join("program")));
        assert_eq!(found("other"), None);
        assert_eq!(found(""), None);
        assert_eq!(find_program(OsStr::new("./here")), Some("./here".into()));
    }
}

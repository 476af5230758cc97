// SPDX-License-Identifier: Apache-2.0
//! Spool checks: the directories in which `esker run --at` can keep open files.

use std::path::Path;

use esker_base::Error;

use super::check::{CheckStatus, MachineCheck};
use crate::text;

/// Below this much free space, programs with large files soon fail.
const FREE_BYTES_MIN: u64 = 256 << 20;
const MEMORY: &str = "/dev/shm";

/// The directory in memory, and the one that is used unless `--spool` is given.
pub fn spool_checks() -> Vec<MachineCheck> {
    let memory = check_of("spool-memory", Path::new(MEMORY));
    vec![check_of("spool", &std::env::temp_dir()), memory]
}

fn check_of(name: &'static str, path: &Path) -> MachineCheck {
    let shown = path.display();
    let option = if name == "spool" {
        "the spool of `esker run --at`".to_owned()
    } else {
        format!("`--spool {MEMORY}` keeps open files in memory")
    };
    // Like the spool itself, which makes a directory there.
    if let Err(error) = tempfile::tempdir_in(path) {
        let error = Error::io(error, format!("make a directory in {shown}"));
        let status = if name == "spool" { CheckStatus::Fails } else { CheckStatus::Info };
        return MachineCheck::new(name, status, error.to_string())
            .advise("give another directory with `--spool`, or set TMPDIR")
            .with("path", shown.to_string());
    }
    let free = rustix::fs::statvfs(path)
        .map_or(0, |status| status.f_bavail.saturating_mul(status.f_frsize));
    let finding = format!("{shown} has {} free; {option}", text::bytes(free));
    let check = match free >= FREE_BYTES_MIN {
        true => MachineCheck::new(name, CheckStatus::Works, finding),
        false => MachineCheck::new(name, CheckStatus::Limited, finding).advise(
            "it needs room for all files that are open at once: choose another by `--spool`",
        ),
    };
    check.with("path", shown.to_string()).with("free_bytes", free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_used_fails() {
        let directory = tempfile::tempdir().expect("a directory");
        let check = check_of("spool", directory.path());
        assert_ne!(check.status, CheckStatus::Fails, "{}", check.finding);
        assert!(check.values["free_bytes"].is_u64());
        assert_eq!(std::fs::read_dir(directory.path()).expect("list").count(), 0);
        let absent = check_of("spool", &directory.path().join("absent"));
        assert_eq!(absent.status, CheckStatus::Fails);
        assert!(absent.finding.contains("absent"), "{}", absent.finding);
    }
}

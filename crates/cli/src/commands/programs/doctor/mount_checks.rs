// SPDX-License-Identifier: Apache-2.0
//! Mount checks: whether this user may mount, and with which options.

use std::path::Path;

use esker_base::Error;
use rustix::process::geteuid;

use super::check::{CheckStatus, MachineCheck};
use super::search_path::{find_program, may_write};

/// The configuration of the programs that mount for ordinary users.
const CONFIGURATION: &str = "/etc/fuse.conf";
const SET_USER_ID: u32 = 0o4000;

/// Advice where only the user who mounts may access a mount.
pub const ALLOW_OTHERS: &str = "for `esker mount --allow-other`, the administrator adds \
                                `user_allow_other` to /etc/fuse.conf";

/// Advice where nothing can be tried.
pub const TEMPORARY_DIRECTORY: &str = "set TMPDIR to a directory to which you may write";

/// Mounts for a moment; the error says what to do.
pub fn mount_check() -> MachineCheck {
    let is_root = geteuid().is_root();
    if let Err(error) = esker_fuse::try_mount() {
        return failed_mount(&error, is_root);
    }
    let Some(problem) = helper_problem(is_root) else {
        let finding = "`esker mount` works for this user";
        return MachineCheck::new("mount", CheckStatus::Works, finding);
    };
    // The library that mounts finds its helper elsewhere, too.
    let finding = "`esker mount` works for this user, but `esker umount` does not";
    MachineCheck::new("mount", CheckStatus::Limited, finding).advise(problem)
}

fn failed_mount(error: &Error, is_root: bool) -> MachineCheck {
    let check = MachineCheck::failed("mount", error);
    if !esker_fuse::is_supported() {
        // The error says what the device needs.
        return check;
    }
    if !may_write(&std::env::temp_dir()) {
        return check.advise(TEMPORARY_DIRECTORY);
    }
    if is_root {
        return check.advise(
            "root may not mount here: start the container with the capability CAP_SYS_ADMIN, or use \
             `esker run --at`",
        );
    }
    match helper_problem(is_root) {
        Some(problem) => check.advise(problem),
        None => check.advise("see fusermount3(1), and what the container allows"),
    }
}

/// The defect of the program that mounts and unmounts for a user, if it has one.
fn helper_problem(is_root: bool) -> Option<String> {
    if is_root {
        return None;
    }
    if rustix::thread::no_new_privs().unwrap_or(false) {
        return Some(
            "this process may gain no privileges (no_new_privs), which fusermount3 needs: run it \
             outside of the container or of `esker run --at`"
                .into(),
        );
    }
    let Some(path) = esker_fuse::HELPER_NAMES.iter().find_map(|name| find_program(name.as_ref()))
    else {
        return Some("there is no fusermount3 on PATH: ask the administrator for `fuse3`".into());
    };
    (!is_set_user_id(&path)).then(|| {
        format!(
            "{} is not set-user-id of root, so it mounts for root only: ask the administrator",
            path.display()
        )
    })
}

fn is_set_user_id(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.metadata().is_ok_and(|found| found.mode() & SET_USER_ID != 0 && found.uid() == 0)
}

/// True if this user may open mounts to other users.
pub fn may_allow_others() -> bool {
    geteuid().is_root()
        || std::fs::read_to_string(CONFIGURATION).is_ok_and(|text| allows_others(&text))
}

/// Whether other users may access a mount of this user.
pub fn mount_users_check() -> MachineCheck {
    if may_allow_others() {
        let finding = "mounts can be opened to other users (`esker mount --allow-other`)";
        return MachineCheck::new("mount-users", CheckStatus::Works, finding);
    }
    let finding = "only you can access your mounts";
    MachineCheck::new("mount-users", CheckStatus::Info, finding).advise(ALLOW_OTHERS)
}

/// The line for a check that means nothing where mounts do not work.
pub fn unchecked(name: &'static str) -> MachineCheck {
    MachineCheck::new(name, CheckStatus::Info, "not checked, since mounts do not work")
}

/// True if the configuration lets users open their mounts to others.
fn allows_others(configuration: &str) -> bool {
    configuration.lines().any(|line| line.trim() == "user_allow_other")
}

/// Whether mounts can take requests by rings.
pub fn mount_rings_check() -> MachineCheck {
    match esker_fuse::try_rings() {
        Ok(()) => {
            let finding = "FUSE over io_uring works (`esker mount --transport uring`)";
            MachineCheck::new("mount-rings", CheckStatus::Works, finding)
        }
        Err(reason) => MachineCheck::new(
            "mount-rings",
            CheckStatus::Info,
            format!("mounts use threads, not rings; {reason}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_on_a_line_of_its_own_allows_others() {
        for (configuration, allowed) in [
            ("# user_allow_other\nmount_max = 9\n", false),
            ("mount_max = 9\n user_allow_other \n", true),
            ("user_allow_other_users\n", false),
            ("", false),
        ] {
            assert_eq!(allows_others(configuration), allowed, "{configuration:?}");
        }
    }

    #[test]
    fn a_program_of_another_user_mounts_nothing_for_this_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fusermount3");
        std::fs::write(&path, "").expect("a file");
        assert!(!is_set_user_id(&path));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Gained privilege: what a user gains by running a file, and would not gain under `no_new_privs`.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const SET_USER_ID: u32 = 0o4000;
/// Without the group's execute bit, the set-group-id bit means something else.
const SET_GROUP_ID: u32 = 0o2010;

/// A privilege that this user gains by running a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GainedPrivilege {
    /// The program runs as this user.
    SetUserId(u32),
    /// The program runs in this group.
    SetGroupId(u32),
    /// The program has some capabilities of the superuser.
    Capabilities,
}

impl GainedPrivilege {
    /// The privileges that this user gains by running the file at `path`.
    pub fn of_file(path: &Path, metadata: &Metadata) -> Vec<Self> {
        let mut gained = Vec::new();
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        if metadata.mode() & SET_USER_ID != 0 && metadata.uid() != user {
            gained.push(Self::SetUserId(metadata.uid()));
        }
        if metadata.mode() & SET_GROUP_ID == SET_GROUP_ID && metadata.gid() != group {
            gained.push(Self::SetGroupId(metadata.gid()));
        }
        let mut capabilities = [0; 64];
        let has_some =
            rustix::fs::getxattr(path, "security.capability", &mut capabilities[..]).is_ok();
        // The superuser has all capabilities without the file's.
        if has_some && user != 0 {
            gained.push(Self::Capabilities);
        }
        gained
    }

    /// True if the kernel denies the program the mounts of its caller: FUSE admits only processes
    /// whose user and group are those of the mount, unless the mount allows others.
    ///
    /// Source: `fuse_permissible_uidgid` in fs/fuse/dir.c of Linux 6.18.
    pub const fn is_denied_mounts(self) -> bool {
        !matches!(self, Self::Capabilities)
    }

    /// The privilege as a clause about the program.
    pub fn clause(self) -> String {
        match self {
            Self::Capabilities => format!("it has {self}"),
            _ => format!("it is {self}"),
        }
    }
}

impl fmt::Display for GainedPrivilege {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetUserId(user) => write!(formatter, "set-user-id of user {user}"),
            Self::SetGroupId(group) => write!(formatter, "set-group-id of group {group}"),
            Self::Capabilities => formatter.write_str("file capabilities (see `getcap`)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_are_sentences() {
        for (privilege, clause, is_denied) in [
            (GainedPrivilege::SetUserId(0), "it is set-user-id of user 0", true),
            (GainedPrivilege::SetGroupId(5), "it is set-group-id of group 5", true),
            (GainedPrivilege::Capabilities, "it has file capabilities (see `getcap`)", false),
        ] {
            assert_eq!(privilege.clause(), clause);
            assert_eq!(privilege.is_denied_mounts(), is_denied);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! File selection: tells the files of the application from others in a log, and names the
//! directories of the others.
//!
//! Without paths, an import leaves out objects that are not in a directory, such as pipes and
//! sockets, and files that a program needs to start: those of the system, of programs that start
//! ranks, and shared libraries. Advice on storage is not about them. Source: the default exclusions of Darshan
//! (`darshan_path_exclusions`), without `/var` and `/opt`, where services and applications keep
//! data.

use std::collections::HashMap;

/// The directories of the system's files.
const SYSTEM_DIRECTORIES: [&[u8]; 12] = [
    b"/bin/", b"/boot/", b"/dev/", b"/etc/", b"/lib/", b"/lib32/", b"/lib64/", b"/proc/", b"/run/",
    b"/sbin/", b"/sys/", b"/usr/",
];

/// Maximum number of directories that are counted; later ones are not named.
const DIRECTORIES_MAX: usize = 4_096;

/// Directories that a summary names.
const DIRECTORIES_NAMED: usize = 8;

/// The files that an import takes, and counts of those that it left out.
#[derive(Debug)]
pub struct FileSelection<'a> {
    paths: &'a [Vec<u8>],
    left_out: u64,
    directories: HashMap<Vec<u8>, u64>,
}

impl<'a> FileSelection<'a> {
    /// Takes files at and below `paths`, or those of the application if there are none.
    pub fn new(paths: &'a [Vec<u8>]) -> Self {
        Self { paths, left_out: 0, directories: HashMap::new() }
    }

    /// True if a call on `path` is taken; otherwise counts it.
    pub fn takes(&mut self, path: &[u8]) -> bool {
        let is_below = |above: &Vec<u8>| {
            let rest = path.strip_prefix(above.as_slice());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || above.ends_with(b"/"))
        };
        let is_taken = match self.paths.is_empty() {
            true => is_file_path(path) && !is_system_file(path) && !is_launcher_file(path),
            false => self.paths.iter().any(is_below),
        };
        if !is_taken && is_file_path(path) {
            self.leave_out(path);
        }
        is_taken
    }

    /// Counts a call on a file that is not taken.
    pub fn leave_out(&mut self, path: &[u8]) {
        self.left_out += 1;
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0).max(1);
        let directory = &path[..end.min(path.len())];
        if let Some(calls) = self.directories.get_mut(directory) {
            *calls += 1;
        } else if self.directories.len() < DIRECTORIES_MAX {
            self.directories.insert(directory.to_owned(), 1);
        }
    }

    /// Calls on files that were not taken.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The directories of those with the most calls, and their calls.
    pub fn directories(&self) -> Vec<(String, u64)> {
        let of = |(path, calls): (&Vec<u8>, &u64)| (crate::trace::path_text(path), *calls);
        let mut directories: Vec<_> = self.directories.iter().map(of).collect();
        directories.sort_unstable_by(|left, right| (right.1, &left.0).cmp(&(left.1, &right.0)));
        directories.truncate(DIRECTORIES_NAMED);
        directories
    }
}

/// False for pipes, sockets and other objects that are not in a directory (`pipe:[42302]`).
pub fn is_file_path(path: &[u8]) -> bool {
    let is_nowhere = !path.starts_with(b"/") && path.windows(2).any(|window| window == b":[");
    !is_nowhere && !path.starts_with(b"anon_inode:")
}

/// Beginnings of names of the directories in which Open MPI, PRRTE and PMIx keep files of a job.
const LAUNCHER_DIRECTORIES: [&[u8]; 4] = [b"ompi.", b"prte.", b"pmix.", b"pmix-"];

/// True for files of programs that start ranks.
fn is_launcher_file(path: &[u8]) -> bool {
    let directories =
        path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |end| &path[..end]);
    let is_known = |part: &[u8]| LAUNCHER_DIRECTORIES.iter().any(|known| part.starts_with(known));
    path.starts_with(b"/tmp/") && directories.split(|byte| *byte == b'/').any(is_known)
}

/// True for files of the system and shared libraries (`libm.so.6`).
fn is_system_file(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_library = |at: usize| {
        let rest = &name[at + 3..];
        name[at..].starts_with(b".so") && (rest.is_empty() || rest[0] == b'.')
    };
    let is_library = (0..name.len().saturating_sub(2)).any(is_library);
    is_library || SYSTEM_DIRECTORIES.iter().any(|directory| path.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_system_are_left_out_and_named() {
        let mut found = FileSelection::new(&[]);
        for path in [&b"/scratch/a"[..], b"/scratch/so", b"/home/x/a.sound", b"b", b"/a", b"/var/x"]
        {
            assert!(found.takes(path), "{}", String::from_utf8_lossy(path));
        }
        for path in [&b"/usr/lib/x"[..], b"/usr/lib/y", b"/home/x/libm.so.6", b"/h/m.so", b"/etc/x"]
        {
            assert!(!found.takes(path), "{}", String::from_utf8_lossy(path));
        }
        assert!(
            !found.takes(b"/tmp/ompi.node.0/pid.7/contact.txt") && found.takes(b"/tmp/ompi.txt")
        );
        for path in [&b"pipe:[5]"[..], b"anon_inode:[eventpoll]", b"socket:[7]"] {
            assert!(!found.takes(path));
        }
        assert_eq!(found.left_out(), 6);
        let named = [
            ("/usr/lib", 2),
            ("/etc", 1),
            ("/h", 1),
            ("/home/x", 1),
            ("/tmp/ompi.node.0/pid.7", 1),
        ];
        assert_eq!(found.directories(), named.map(|(path, calls)| (path.to_owned(), calls)));
    }

    #[test]
    fn paths_select_what_is_at_or_below_them() {
        let paths = [b"/a".to_vec(), b"/b/".to_vec()];
        let mut found = FileSelection::new(&paths);
        assert!(found.takes(b"/a") && found.takes(b"/a/x.so") && found.takes(b"/b/x"));
        assert!(!found.takes(b"/ab") && !found.takes(b"/b") && !found.takes(b"pipe:[1]"));
        let all = [b"/".to_vec()];
        assert!(FileSelection::new(&all).takes(b"/usr/lib/libc.so.6"));
        for index in 0..2 * DIRECTORIES_MAX {
            found.takes(format!("/c{index}/f").as_bytes());
        }
        assert_eq!(found.directories.len(), DIRECTORIES_MAX);
    }
}

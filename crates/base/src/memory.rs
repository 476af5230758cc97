// SPDX-License-Identifier: Apache-2.0
//! Memory still available to this process, according to the machine and its control groups.

use std::path::{Path, PathBuf};

const MEMINFO: &str = "/proc/meminfo";
const OWN_GROUPS: &str = "/proc/self/cgroup";
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that this process can still take before the machine, or a control group that it belongs
/// to, runs out: the limit that batch systems and containers grant. `None` if the kernel does not
/// say. Reads a few small files.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string(MEMINFO).ok().and_then(|text| of_meminfo(&text));
    let groups = std::fs::read_to_string(OWN_GROUPS).unwrap_or_default();
    machine.into_iter().chain(groups_of(&groups).into_iter().filter_map(|group| group.left())).min()
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// A control group, with the names of its files for the limit and the use of memory.
#[derive(Debug, PartialEq, Eq)]
struct ControlGroup {
    directory: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl ControlGroup {
    fn left(&self) -> Option<u64> {
        let read = |name: &str| -> Option<u64> {
            std::fs::read_to_string(self.directory.join(name)).ok()?.trim().parse().ok()
        };
        // A group without a limit has "max" instead of a number.
        Some(read(self.limit)?.saturating_sub(read(self.usage)?))
    }
}

/// Returns the groups, of version 1 or 2, that `text` lists for a process, and their ancestors.
fn groups_of(text: &str) -> Vec<ControlGroup> {
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, limit, usage) = if controllers.is_empty() {
            (Path::new(GROUPS).to_owned(), "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            let root = Path::new(GROUPS).join("memory");
            (root, "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        let own = Path::new(path.trim_start_matches('/'));
        // A container sees its own group at the root, but under the path that it has outside.
        let paths = own.ancestors().map(|above| root.join(above));
        groups.extend(paths.map(|directory| ControlGroup { directory, limit, usage }));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_is_left() {
        let text = "MemTotal:  24684092 kB\nMemAvailable:   21033248 kB\n";
        assert_eq!(of_meminfo(text), Some(21_033_248 << 10));
        for text in ["", "MemAvailable: x kB", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(of_meminfo(text), None);
        }
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn groups_above_count_too() {
        let directories = |text| -> Vec<PathBuf> {
            groups_of(text).into_iter().map(|group| group.directory).collect()
        };
        assert_eq!(
            directories("9:name=systemd:/\n4:cpu,memory:/job/7\n0::/\n"),
            ["memory/job/7", "memory/job", "memory/", ""].map(|path| Path::new(GROUPS).join(path))
        );
        assert!(directories("nothing\n3:cpuset:/a\n").is_empty());
    }

    #[test]
    fn a_group_has_left_what_it_does_not_take() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let group = ControlGroup {
            directory: directory.path().into(),
            limit: "memory.max",
            usage: "memory.current",
        };
        assert_eq!(group.left(), None);
        for (limit, usage, left) in
            [("max", "5", None), ("100", "30", Some(70)), ("100", "130", Some(0))]
        {
            std::fs::write(directory.path().join("memory.max"), format!("{limit}\n"))
                .expect("write");
            std::fs::write(directory.path().join("memory.current"), usage).expect("write");
            assert_eq!(group.left(), left);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Process: identifies a process across machines, and tells whether it still lives.
//!
//! Process numbers are reused, machines reboot, and containers number their processes separately.
//! So a process is identified by its machine's boot, its PID namespace, its number and its start
//! time. Only a process with the same boot and namespace can say that it is gone.

use std::sync::OnceLock;

use rustix::process::Pid;

/// A process, distinguishable from all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The name of the machine, for people.
    pub host: String,
    /// Linux's identifier of this boot of the machine; empty if unknown.
    pub boot: String,
    /// The PID namespace; 0 if unknown.
    pub pid_namespace: u64,
    /// Its number in that namespace.
    pub pid: u32,
    /// Its start time, in clock ticks since the machine booted; 0 if unknown.
    pub started_ticks: u64,
}

/// State of a process, as far as this one can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It is running.
    Lives,
    /// It has ended.
    Ended,
    /// It belongs to another machine or container, or this machine does not say.
    Unknown,
}

impl ProcessIdentity {
    /// Returns the identity of this process.
    #[must_use]
    pub fn current() -> Self {
        // A forked child is another process.
        static CURRENT: OnceLock<ProcessIdentity> = OnceLock::new();
        let current = CURRENT.get_or_init(Self::read_current);
        match current.pid == std::process::id() {
            true => current.clone(),
            false => Self::read_current(),
        }
    }

    fn read_current() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let pid = std::process::id();
        Self {
            host: text("/proc/sys/kernel/hostname").trim().to_owned(),
            boot: text("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            pid_namespace: number_in_brackets(&namespace.to_string_lossy()).unwrap_or(0),
            pid,
            started_ticks: ProcessStat::of(pid).map_or(0, |stat| stat.started_ticks),
        }
    }

    /// Returns the state of this process as seen by `observer`, the calling process. A few system
    /// calls.
    #[must_use]
    pub fn state_seen_by(&self, observer: &Self) -> ProcessState {
        let is_comparable = !self.boot.is_empty()
            && self.boot == observer.boot
            && self.pid_namespace != 0
            && self.pid_namespace == observer.pid_namespace;
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| is_comparable) else {
            return ProcessState::Unknown;
        };
        // Not through /proc, which may hide the processes of other users.
        if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            return ProcessState::Ended;
        }
        match ProcessStat::of(self.pid) {
            Some(stat) if stat.has_ended => ProcessState::Ended,
            // The number now belongs to another process.
            Some(stat) if stat.started_ticks != self.started_ticks => ProcessState::Ended,
            Some(_) => ProcessState::Lives,
            None => ProcessState::Unknown,
        }
    }
}

/// The fields of `/proc/<pid>/stat` that are needed here.
struct ProcessStat {
    /// True if the process has ended and only its parent has yet to collect it.
    has_ended: bool,
    started_ticks: u64,
}

impl ProcessStat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses `pid (name) state …`; the name may contain blanks and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
        // Field 22 of the line; the state is field 3.
        let started_ticks = fields.nth(18)?.parse().ok()?;
        Some(Self { has_ended, started_ticks })
    }
}

/// Parses the number of `pid:[4026531836]`.
fn number_in_brackets(text: &str) -> Option<u64> {
    text.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_that_started_at_another_time_has_ended() {
        let current = ProcessIdentity::current();
        assert!(!current.boot.is_empty() && current.pid_namespace != 0, "{current:?}");
        assert_eq!(current.state_seen_by(&current), ProcessState::Lives);
        let other = ProcessIdentity { started_ticks: current.started_ticks + 1, ..current.clone() };
        assert_eq!(other.state_seen_by(&current), ProcessState::Ended);
    }

    #[test]
    fn a_process_that_was_killed_has_ended_before_and_after_its_parent_knows() {
        let current = ProcessIdentity::current();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
        let started_ticks = ProcessStat::of(child.id()).expect("it runs").started_ticks;
        let identity = ProcessIdentity { pid: child.id(), started_ticks, ..current.clone() };
        assert_eq!(identity.state_seen_by(&current), ProcessState::Lives);
        child.kill().expect("it is ours");
        while !ProcessStat::of(child.id()).is_some_and(|stat| stat.has_ended) {
            std::thread::yield_now();
        }
        assert_eq!(identity.state_seen_by(&current), ProcessState::Ended);
        child.wait().expect("it has ended");
        assert_eq!(identity.state_seen_by(&current), ProcessState::Ended);
    }

    /// The same numbers in another container, or on another machine, prove nothing.
    #[test]
    fn nothing_is_known_of_processes_that_are_numbered_elsewhere() {
        let current = ProcessIdentity::current();
        let gone = ProcessIdentity { pid: i32::MAX as u32, ..current.clone() };
        assert_eq!(gone.state_seen_by(&current), ProcessState::Ended);
        let elsewhere = [
            ProcessIdentity { pid_namespace: current.pid_namespace + 1, ..gone.clone() },
            ProcessIdentity { boot: "another".to_owned(), ..gone.clone() },
            ProcessIdentity { pid_namespace: 0, ..gone.clone() },
            ProcessIdentity { boot: String::new(), ..gone.clone() },
            ProcessIdentity { pid: u32::MAX, ..current.clone() },
            ProcessIdentity { pid: 0, ..current.clone() },
        ];
        for identity in elsewhere {
            assert_eq!(identity.state_seen_by(&current), ProcessState::Unknown, "{identity:?}");
        }
        let unknowing = ProcessIdentity { boot: String::new(), ..current.clone() };
        let both = ProcessIdentity { boot: String::new(), ..gone };
        assert_eq!(both.state_seen_by(&unknowing), ProcessState::Unknown);
    }

    #[test]
    fn a_name_with_brackets_is_no_field() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        let stat = ProcessStat::parse(&format!("12 (a) Z (b) {fields}")).expect("fields");
        assert_eq!((stat.has_ended, stat.started_ticks), (false, 777));
        assert!(ProcessStat::parse("12 (cut) S 1").is_none());
        assert!(ProcessStat::parse("").is_none());
    }
}

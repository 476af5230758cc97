// SPDX-License-Identifier: Apache-2.0
//! Environment: the machine and the settings on which a result depends besides the service, as
//! Linux shows them.
//!
//! Everything is best effort: values that the kernel does not show are empty or 0.

use std::fs::read_to_string;
use std::path::Path;

use esker_base::mounts::MountedFileSystem;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// The machine and the file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunEnvironment {
    /// The host's name.
    pub host: String,
    /// Kernel and its release.
    pub kernel: String,
    /// Model of the processor.
    pub cpu: String,
    /// Processors that ranks of one node may use.
    pub processors: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Type of the target's file system.
    pub file_system: String,
    /// Its mount point and options.
    pub mount: String,
    /// Version and durability settings of the service, if it states them.
    pub service: String,
    /// Load average of the last minute before the run.
    pub load_before: f64,
    /// The same after the run.
    pub load_after: f64,
    /// Percentage of processor time that a hypervisor gave to others during the run.
    pub steal_percent: f64,
    /// Percentage of processor time during which processors were idle during the run.
    pub idle_percent: f64,
}

/// Processor times since boot, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorTicks {
    all: u64,
    idle: u64,
    steal: u64,
}

impl ProcessorTicks {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        Self::parse(&read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        // Guest time, in the last two columns, is also in the first two.
        let all = ticks.iter().take(8).sum();
        Self { all, idle: at(3) + at(4), steal: at(7) }
    }
}

impl RunEnvironment {
    /// Captures the environment of a run that measures `directory`, before it begins.
    #[must_use]
    pub fn capture(directory: Option<&Path>) -> Self {
        let uname = rustix::system::uname();
        let memory = read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib: u64 = field(&memory, "MemTotal:").parse().unwrap_or(0);
        let (mount, file_system) = directory.map(mount_of).unwrap_or_default();
        Self {
            host: uname.nodename().to_string_lossy().into_owned(),
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            cpu: cpu_model(&read_to_string("/proc/cpuinfo").unwrap_or_default()),
            processors: processors(),
            memory_bytes: memory_kib << 10,
            file_system,
            mount,
            load_before: load(),
            ..Self::default()
        }
    }

    /// Adds the values that are known only after the run; `before` was read when it began.
    pub fn finish(&mut self, before: ProcessorTicks) {
        let after = ProcessorTicks::read();
        let percent =
            |part: u64| 100.0 * part as f64 / after.all.saturating_sub(before.all).max(1) as f64;
        self.load_after = load();
        self.steal_percent = percent(after.steal.saturating_sub(before.steal));
        self.idle_percent = percent(after.idle.saturating_sub(before.idle));
    }
}

/// Processors that this process may use.
#[must_use]
pub fn processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(processors).unwrap_or(u32::MAX)
}

/// The processors on which this thread may run, a bit each: launchers bind ranks to some.
#[must_use]
pub fn processor_bits() -> Vec<u8> {
    let mut bits = vec![0; CpuSet::MAX_CPU.div_ceil(8)];
    if let Ok(found) = sched_getaffinity(None) {
        for number in (0..CpuSet::MAX_CPU).filter(|number| found.is_set(*number)) {
            bits[number / 8] |= 1 << (number % 8);
        }
    }
    bits
}

/// Processors that the ranks of a node may use, where `own` and `all` are the bits of this rank and
/// of all ranks together.
#[must_use]
pub fn shared_processors(own: &[u8], all: &[u8]) -> u32 {
    let count = |bits: &[u8]| bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
    let usable = processors();
    // A quota of processor time counts for all ranks together, so dividing it among them does not
    // raise it.
    if usable < count(own) { usable } else { count(all).max(usable) }
}

/// The number of times that the scheduler has preempted the calling thread.
#[must_use]
pub fn preemptions() -> u64 {
    let status = read_to_string("/proc/thread-self/status").unwrap_or_default();
    field(&status, "nonvoluntary_ctxt_switches:").parse().unwrap_or(0)
}

/// The first word after `name` at the beginning of a line.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    value.split_whitespace().next().unwrap_or_default()
}

fn cpu_model(info: &str) -> String {
    let model = info.lines().find(|line| line.starts_with("model name"));
    model.and_then(|line| line.split_once(": ")).map_or("", |(_, name)| name).to_owned()
}

fn load() -> f64 {
    let text = read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// The mount point with its options, and the type of its file system, at `directory`.
fn mount_of(directory: &Path) -> (String, String) {
    let Ok(path) = directory.canonicalize() else { return Default::default() };
    let mounts = MountedFileSystem::all().unwrap_or_default();
    let mounts = mounts.into_iter().filter(|mount| path.starts_with(&mount.mountpoint));
    // The last of several mounts at one point is on top.
    let Some(mount) = mounts.max_by_key(|mount| mount.mountpoint.as_os_str().len()) else {
        return Default::default();
    };
    let MountedFileSystem { mountpoint, mount_options, kind, options, .. } = mount;
    (format!("{} ({mount_options}; {options})", mountpoint.display()), kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let mut environment = RunEnvironment::capture(Some(Path::new("/proc/self")));
        environment.finish(ProcessorTicks::default());
        assert_eq!(environment.file_system, "proc");
        assert!(environment.kernel.starts_with("Linux ") && environment.processors > 0);
        assert!(environment.memory_bytes > 1 << 20);
    }

    /// Ranks that a launcher has bound to one processor each have two together.
    #[test]
    fn bound_ranks_have_the_processors_of_all() {
        let own = processor_bits();
        let alone = shared_processors(&own, &own);
        assert_eq!(alone, processors(), "a rank alone has what it may use");
        let free = (0..own.len() * 8).find(|bit| own[bit / 8] & (1 << (bit % 8)) == 0);
        let free = free.expect("a machine with less than 1,024 processors");
        let mut all = own.clone();
        all[free / 8] |= 1 << (free % 8);
        let has_quota = processors() < own.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(shared_processors(&own, &all), alone + u32::from(!has_quota));
    }

    #[test]
    fn guest_time_is_not_counted_twice() {
        let ticks = ProcessorTicks::parse("cpu  1 2 3 4 5 6 7 8 100 200\ncpu0 9\n");
        assert_eq!((ticks.all, ticks.idle, ticks.steal), (36, 9, 8));
        assert_eq!(ProcessorTicks::parse("").all, 0);
    }
}

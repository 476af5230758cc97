// SPDX-License-Identifier: Apache-2.0
//! Processors: those for which the kernel has queues, and those on which this process may run.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The list of possible processors; the kernel has a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// The processors of this machine.
#[derive(Debug)]
pub(crate) struct Processors {
    count: usize,
    /// Those on which this process may run, ascending; never empty.
    usable: Vec<usize>,
}

impl Processors {
    pub(crate) fn read() -> io::Result<Self> {
        let count = count_of(std::fs::read_to_string(POSSIBLE)?.trim())
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE} has no list of processors")))?;
        let allowed = sched_getaffinity(None)?;
        let usable: Vec<usize> = (0..count.min(CpuSet::MAX_CPU))
            .filter(|processor| allowed.is_set(*processor))
            .collect();
        if usable.is_empty() {
            return Err(io::Error::other("this process may run on none of them"));
        }
        Ok(Self { count, usable })
    }

    /// Number of queues.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The processor of each thread, and the queues that the thread serves: its own, and those of
    /// processors without a thread.
    pub(crate) fn assignments(&self) -> Vec<(usize, Vec<u16>)> {
        let mut assignments: Vec<(usize, Vec<u16>)> =
            self.usable.iter().map(|processor| (*processor, Vec::new())).collect();
        for queue in 0..self.count {
            let own = self.usable.binary_search(&queue);
            let thread = own.unwrap_or_else(|_| queue % assignments.len());
            assignments[thread].1.push(u16::try_from(queue).expect("the kernel has at most 8192"));
        }
        assignments
    }
}

/// Number of processors in a list like `0-3,8`.
fn count_of(list: &str) -> Option<usize> {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let count: usize = list.split(',').map(of_range).sum::<Option<usize>>()?;
    (1..=usize::from(u16::MAX)).contains(&count).then_some(count)
}

/// Restricts this thread to `processor`.
pub(crate) fn pin_to(processor: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in [("0", Some(1)), ("0-1", Some(2)), ("0-3,8-9,11", Some(7))] {
            assert_eq!(count_of(list), count, "{list}");
        }
        for list in ["", "x", "3-1", "0-", "0-99999"] {
            assert_eq!(count_of(list), None, "{list}");
        }
    }

    #[test]
    fn every_queue_is_served_once_and_on_its_processor_if_that_may_be_used() {
        let processors = Processors { count: 6, usable: vec![1, 4] };
        let assignments = processors.assignments();
        assert_eq!(assignments, [(1, vec![0, 1, 2]), (4, vec![3, 4, 5])]);
    }
}

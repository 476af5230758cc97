// SPDX-License-Identifier: Apache-2.0
//! Clock: the time, passed in by callers so that a simulation can replace it.
//!
//! Two readings that never mix: wall time stamps files and objects; monotonic time measures
//! durations and ends leases. This file alone asks the kernel for the time.
//! Concurrency: clocks are shared freely.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// A source of wall time and monotonic time.
pub trait Clock: Send + Sync + Debug {
    /// Nanoseconds since the Unix epoch, as coarse as the kernel stamps files: two calls a few
    /// milliseconds apart may agree, and the reading may step when an administrator sets the time.
    fn now_ns(&self) -> u64;

    /// Nanoseconds since a moment that is fixed for the life of the process. Never steps back, and
    /// keeps counting while the machine is suspended: leases and deadlines expire meanwhile, as
    /// they do for other machines.
    fn monotonic_ns(&self) -> u64;
}

/// The clock of the machine.
///
/// `now_ns` is `CLOCK_REALTIME_COARSE`: a few nanoseconds a call, no system call. `monotonic_ns` is
/// `CLOCK_BOOTTIME`, since `CLOCK_MONOTONIC` stands still while the machine is suspended.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        ns_of(clock_gettime(ClockId::RealtimeCoarse))
    }

    fn monotonic_ns(&self) -> u64 {
        ns_of(clock_gettime(ClockId::Boottime))
    }
}

/// A clock that moves only when its owner moves it, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ns: AtomicU64,
    monotonic_ns: AtomicU64,
}

impl ManualClock {
    /// Makes a clock that stands at `now_ns` since the Unix epoch; its monotonic reading starts at
    /// 0.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(now_ns), monotonic_ns: AtomicU64::new(0) }
    }

    /// Advances both readings by `step`.
    pub fn advance(&self, step: Duration) {
        let step_ns = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_add(step_ns, Ordering::SeqCst);
        self.monotonic_ns.fetch_add(step_ns, Ordering::SeqCst);
    }

    /// Sets the wall time, as an administrator would; the monotonic reading does not change.
    pub fn set_now_ns(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::SeqCst)
    }
}

/// Converts a time to nanoseconds; 0 on a machine whose time is set before 1970.
fn ns_of(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(NS_PER_SECOND).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_is_of_this_century_and_goes_on() {
        let clock = SystemClock;
        assert!(clock.now_ns() > 1_600_000_000 * NS_PER_SECOND);
        let before = clock.monotonic_ns();
        assert!(clock.monotonic_ns() >= before);
    }

    /// Symptom: a lease or a deadline lasted longer by the time for which a machine was suspended.
    /// Cause: `CLOCK_MONOTONIC` stands still meanwhile. It differs from `CLOCK_BOOTTIME` only on a
    /// machine that was suspended, or in a time namespace: `unshare --time --boottime 1000`.
    /// Fix: use `CLOCK_BOOTTIME`.
    #[test]
    fn monotonic_time_counts_suspensions() {
        let boot_ns = || ns_of(clock_gettime(ClockId::Boottime));
        let before_ns = boot_ns();
        let read_ns = SystemClock.monotonic_ns();
        assert!((before_ns..=boot_ns()).contains(&read_ns));
    }

    #[test]
    fn manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(5);
        assert_eq!((clock.now_ns(), clock.monotonic_ns()), (5, 0));
        clock.advance(Duration::from_nanos(7));
        assert_eq!((clock.now_ns(), clock.monotonic_ns()), (12, 7));
        clock.set_now_ns(1);
        assert_eq!((clock.now_ns(), clock.monotonic_ns()), (1, 7));
    }

    #[test]
    fn times_before_the_epoch_read_zero() {
        assert_eq!(ns_of(Timespec { tv_sec: -3, tv_nsec: 0 }), 0);
        assert_eq!(ns_of(Timespec { tv_sec: 2, tv_nsec: 1 }), 2 * NS_PER_SECOND + 1);
    }
}

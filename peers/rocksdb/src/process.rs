// SPDX-License-Identifier: Apache-2.0
//! Process: the operating-system services that every operation of this driver needs.

use std::fmt::Display;
use std::os::fd::AsRawFd;
use std::path::Path;

use rocksdb::perf::{PerfContext, PerfMetric};

pub fn die(message: impl Display) -> ! {
    eprintln!("peer-rocksdb: {message}");
    std::process::exit(1)
}

pub fn require<T, E: Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| die(error))
}

/// Runs `work(thread)` on each of `threads` threads and adds up what they return.
pub fn parallel(threads: u64, work: impl Fn(u64) -> u64 + Sync) -> u64 {
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || work(t))).collect();
        let first = work(0);
        first + others.into_iter().map(|t| t.join().expect("threads don't panic")).sum::<u64>()
    })
}

/// Block reads from the store by this thread since the counter's creation.
pub struct ReadCounter(PerfContext);

impl ReadCounter {
    pub fn new() -> Self {
        let mut context = PerfContext::default();
        context.reset();
        ReadCounter(context)
    }

    pub fn reads(&self) -> u64 {
        self.0.metric(PerfMetric::BlockReadCount)
    }
}

/// Asks the kernel to forget the pages of a database; only root can drop all of them.
pub fn drop_pages(database: &Path) {
    // SAFETY: sync takes nothing; posix_fadvise takes a descriptor that lives through the call.
    unsafe { libc::sync() };
    for entry in require(std::fs::read_dir(database)) {
        if let Ok(file) = std::fs::File::open(require(entry).path()) {
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
    // Only root may; the advice above has already done most of it.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}

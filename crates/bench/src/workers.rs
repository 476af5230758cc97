// SPDX-License-Identifier: Apache-2.0
//! Workers: runs the same function on several threads.

use esker_base::Result;

/// Runs `work` on `threads` threads at once, each with its number; returns the first error.
pub fn run(threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    if threads == 1 {
        return work(0);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let mut outcome = Ok(());
        for worker in workers {
            let done = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(done);
        }
        outcome
    })
}

// SPDX-License-Identifier: Apache-2.0
//! Sharing: distributes units of work over threads; each takes the next unit when it is done.

use std::sync::atomic::{AtomicUsize, Ordering};

use esker_base::Result;

/// Applies `work` to each of `units` on up to `threads` threads; returns each thread's result.
///
/// # Errors
/// The first failure of the first thread that failed.
pub(crate) fn share<U: Sync, S: Default + Send>(
    units: &[U],
    threads: usize,
    work: impl Fn(&U, &mut S) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut gathered = S::default();
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(unit, &mut gathered)?;
        }
        Ok(gathered)
    };
    if threads <= 1 || units.len() <= 1 {
        return Ok(vec![run()?]);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(units.len())).map(|_| scope.spawn(run)).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|part| part.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

#[cfg(test)]
mod tests {
    use esker_base::{Error, Kind};

    use super::*;

    #[test]
    fn everything_is_done_once_and_a_failure_is_told() {
        let units: Vec<u64> = (0..1000).collect();
        for threads in [0, 1, 3, 2000] {
            let sums = share(&units, threads, |unit, sum: &mut u64| {
                *sum += unit;
                Ok(())
            });
            assert_eq!(sums.unwrap().iter().sum::<u64>(), 999 * 500);
            let failed = share(&units, threads, |unit, _: &mut ()| match unit {
                7 => Err(Error::new(Kind::Corrupt, "seven")),
                _ => Ok(()),
            });
            assert_eq!(failed.unwrap_err().kind(), Kind::Corrupt);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Pace of a store: the measured fixed cost of a request, and the cost of each byte.
//!
//! Reading a block that nobody asked for pays off where it saves a request that costs more. A
//! region of n blocks of which k were asked for costs one request and n blocks; separate reads cost
//! k requests and k blocks. So joining wins where k/n exceeds the cost of a block divided by the
//! cost of a request with one block: the α of MetaKV §III-B, where it is a constant. On a local
//! file the block is most of a request's cost; on an object store it is next to nothing.
//! Concurrency: a lock around a few additions, once per request.

use parking_lot::Mutex;

use crate::cluster::LOCALITY_PERCENT_MIN;

/// Requests needed before their costs mean anything.
const REQUESTS_MIN: f64 = 32.0;
/// Each request scales the weight of earlier ones by this factor.
const MEMORY: f64 = 0.995;
/// Minimum share, in percent, of a region's blocks that were asked for, however slow requests are:
/// it keeps memory in proportion to the blocks asked for.
const PERCENT_FLOOR: usize = 5;

/// Costs of recent requests.
#[derive(Debug, Default)]
pub struct RequestPace {
    sums: Mutex<RequestSums>,
}

/// Sums over the bytes and nanoseconds of requests; later ones weigh more.
#[derive(Clone, Copy, Debug, Default)]
struct RequestSums {
    requests: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
}

impl RequestPace {
    /// Adds a request to the sums.
    pub fn record(&self, bytes: u64, ns: u64) {
        let (bytes, ns) = (bytes as f64, ns as f64);
        let sums = &mut *self.sums.lock();
        let add = |sum: &mut f64, value: f64| *sum = *sum * MEMORY + value;
        add(&mut sums.requests, 1.0);
        add(&mut sums.bytes, bytes);
        add(&mut sums.ns, ns);
        add(&mut sums.bytes_squared, bytes * bytes);
        add(&mut sums.bytes_ns, bytes * ns);
    }

    /// The average duration of a request in nanoseconds; `None` before the first.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        let RequestSums { requests, ns, .. } = *self.sums.lock();
        (requests > 0.0).then(|| ns / requests)
    }

    /// Nanoseconds that a request costs, and that each of its bytes adds, by a least-squares fit.
    /// `None` until there were enough requests of different sizes.
    #[must_use]
    pub(crate) fn costs(&self) -> Option<(f64, f64)> {
        let RequestSums { requests, bytes, ns, bytes_squared, bytes_ns } = *self.sums.lock();
        let spread = requests * bytes_squared - bytes * bytes;
        // If sizes vary by less than a tenth of their mean, the cost of a byte is unknown.
        if requests < REQUESTS_MIN || spread < bytes * bytes / 100.0 {
            return None;
        }
        let of_byte = ((requests * bytes_ns - bytes * ns) / spread).max(0.0);
        let of_request = ((ns - of_byte * bytes) / requests).max(0.0);
        Some((of_request, of_byte))
    }

    /// α for blocks of `block_bytes`, in percent: the minimum share of a region that must have been
    /// asked for. The paper's value until there were enough requests.
    #[must_use]
    pub fn percent_min(&self, block_bytes: f64) -> usize {
        let Some((of_request, of_byte)) = self.costs() else { return LOCALITY_PERCENT_MIN };
        let of_block = of_byte * block_bytes;
        let percent = 100.0 * of_block / (of_request + of_block).max(f64::MIN_POSITIVE);
        (percent.round() as usize).clamp(PERCENT_FLOOR, 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(of_request: u64, of_byte: f64) -> RequestPace {
        let pace = RequestPace::default();
        for number in 0..100u64 {
            let bytes = 4_096 * (1 + number % 7);
            pace.record(bytes, of_request + (of_byte * bytes as f64) as u64 + number % 3 * 100);
        }
        pace
    }

    #[test]
    fn files_and_object_stores_have_their_own_share() {
        assert_eq!(RequestPace::default().percent_min(4_096.0), LOCALITY_PERCENT_MIN);
        // A file in memory: 1 µs a request, 5 GB/s.
        let file = paced(1_000, 0.2).percent_min(4_096.0);
        assert!((40..=50).contains(&file), "{file}");
        // A disk's cache behind a cheaper system call: a request is a tenth of its block.
        assert!(paced(100, 0.25).percent_min(4_096.0) > 75);
        // An object store: 15 ms, 200 MB/s.
        assert_eq!(paced(15_000_000, 5.0).percent_min(4_096.0), PERCENT_FLOOR);
    }

    #[test]
    fn requests_of_one_size_say_nothing() {
        let pace = RequestPace::default();
        (0..1_000).for_each(|_| pace.record(4_096, 10_000));
        assert_eq!(pace.costs(), None);
    }

    #[test]
    fn a_store_that_changes_is_learned_again() {
        let pace = paced(15_000_000, 5.0);
        for number in 0..3_000u64 {
            let bytes = 4_096 * (1 + number % 5);
            pace.record(bytes, 500 + bytes / 2);
        }
        assert!(pace.percent_min(4_096.0) > 60);
    }
}

//! Pace of a store: what a request costs whatever its size, and what each byte adds, as measured.
//!
//! Reading a block that nobody asked for is worth it where it spares a request that costs more. A
//! region of n blocks of which k were asked for costs one request and n blocks; apart they would
//! cost k of each. So joining wins where k/n is over the cost of a block divided by that of a request
//! with one block: the α of MetaKV §III-B, which there is a constant. On a local file most of a
//! request is its block; on an object store next to nothing is.
//! Concurrency: a lock around a few additions, once a request.

use parking_lot::Mutex;

use crate::cluster::LOCALITY_PERCENT_MIN;

/// Fewer requests tell too little.
const REQUESTS_MIN: f64 = 32.0;
/// How much of what was known each request leaves.
const MEMORY: f64 = 0.995;
/// A region may read up to this share of what nobody asked for, however slow requests are, so that
/// memory stays in proportion to what was asked for.
const PERCENT_FLOOR: usize = 5;

/// Requests seen lately.
#[derive(Debug, Default)]
pub struct Pace {
    sums: Mutex<Sums>,
}

/// Of bytes and nanoseconds of requests, the later weighing more.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
}

impl Pace {
    /// Notes a request.
    pub fn note(&self, bytes: u64, ns: u64) {
        let (bytes, ns) = (bytes as f64, ns as f64);
        let sums = &mut *self.sums.lock();
        let add = |sum: &mut f64, value: f64| *sum = *sum * MEMORY + value;
        add(&mut sums.requests, 1.0);
        add(&mut sums.bytes, bytes);
        add(&mut sums.ns, ns);
        add(&mut sums.bytes_squared, bytes * bytes);
        add(&mut sums.bytes_ns, bytes * ns);
    }

    /// Nanoseconds that requests took on average; `None` before the first.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        let Sums { requests, ns, .. } = *self.sums.lock();
        (requests > 0.0).then(|| ns / requests)
    }

    /// Nanoseconds of a request, and of each of its bytes besides: the line of least squares through
    /// those seen. `None` before there were enough, of different sizes.
    #[must_use]
    pub fn costs(&self) -> Option<(f64, f64)> {
        let Sums { requests, bytes, ns, bytes_squared, bytes_ns } = *self.sums.lock();
        let spread = requests * bytes_squared - bytes * bytes;
        // Sizes that differ by less than a tenth of their mean say nothing of what a byte costs.
        if requests < REQUESTS_MIN || spread < bytes * bytes / 100.0 {
            return None;
        }
        let of_byte = ((requests * bytes_ns - bytes * ns) / spread).max(0.0);
        let of_request = ((ns - of_byte * bytes) / requests).max(0.0);
        Some((of_request, of_byte))
    }

    /// α for blocks of `block_bytes`, in percent: the share of a region that must have been asked
    /// for. The paper's, before there were enough requests.
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

    fn paced(of_request: u64, of_byte: f64) -> Pace {
        let pace = Pace::default();
        for number in 0..100u64 {
            let bytes = 4_096 * (1 + number % 7);
            pace.note(bytes, of_request + (of_byte * bytes as f64) as u64 + number % 3 * 100);
        }
        pace
    }

    #[test]
    fn files_and_object_stores_have_their_own_share() {
        assert_eq!(Pace::default().percent_min(4_096.0), LOCALITY_PERCENT_MIN);
        // A file in memory: 1 µs a request, 5 GB/s.
        let file = paced(1_000, 0.2).percent_min(4_096.0);
        assert!((40..=50).contains(&file), "{file}");
        // A disk's cache under another system call: a request is a tenth of its block.
        assert!(paced(100, 0.25).percent_min(4_096.0) > 75);
        // An object store: 15 ms, 200 MB/s.
        assert_eq!(paced(15_000_000, 5.0).percent_min(4_096.0), PERCENT_FLOOR);
    }

    #[test]
    fn requests_of_one_size_say_nothing() {
        let pace = Pace::default();
        (0..1_000).for_each(|_| pace.note(4_096, 10_000));
        assert_eq!(pace.costs(), None);
    }

    #[test]
    fn a_store_that_changes_is_learned_again() {
        let pace = paced(15_000_000, 5.0);
        for number in 0..3_000u64 {
            let bytes = 4_096 * (1 + number % 5);
            pace.note(bytes, 500 + bytes / 2);
        }
        assert!(pace.percent_min(4_096.0) > 60);
    }
}

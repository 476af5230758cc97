// SPDX-License-Identifier: Apache-2.0
//! Reservoir: a uniform random sample of all operations, of bounded size.
//!
//! Algorithm L: the number of operations to skip until the next one that enters the sample is drawn
//! at once, so an operation that does not enter costs one comparison.
//! Source: Li, Reservoir-Sampling Algorithms of Time Complexity O(n(1 + log(N/n))), 1994.

use esker_base::Random;
use serde::{Deserialize, Serialize};

/// One measured operation on a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct LatencyPoint {
    /// When it began (in an open loop: when it should have begun), in nanoseconds since its phase
    /// began.
    pub at_ns: u64,
    /// Its latency in nanoseconds; in an open loop, its response time.
    pub latency_ns: u64,
}

impl From<(u64, u64)> for LatencyPoint {
    fn from((at_ns, latency_ns): (u64, u64)) -> Self {
        Self { at_ns, latency_ns }
    }
}

impl From<LatencyPoint> for (u64, u64) {
    fn from(point: LatencyPoint) -> Self {
        (point.at_ns, point.latency_ns)
    }
}

/// A uniform sample of at most `capacity` points.
#[derive(Debug)]
pub struct PointReservoir {
    points: Vec<LatencyPoint>,
    capacity: usize,
    random: Random,
    weight: f64,
    seen: u64,
    /// Number of the next point that enters once the reservoir is full.
    next: u64,
}

impl PointReservoir {
    /// An empty reservoir for at most `capacity` points, which must be at least one.
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        assert!(capacity > 0, "a reservoir has room for a point");
        let random = Random::from_seed(seed);
        Self { points: Vec::new(), capacity, random, weight: 1.0, seen: 0, next: 0 }
    }

    /// Offers a point.
    pub fn offer(&mut self, point: LatencyPoint) {
        self.seen += 1;
        if self.points.len() < self.capacity {
            self.points.push(point);
            if self.points.len() == self.capacity {
                self.skip();
            }
        } else if self.seen == self.next {
            let victim = self.random.below(self.capacity as u64) as usize;
            self.points[victim] = point;
            self.skip();
        }
    }

    /// The sample, in no particular order.
    #[must_use]
    pub fn into_points(self) -> Vec<LatencyPoint> {
        self.points
    }

    fn skip(&mut self) {
        self.weight *= (unit_interval(&mut self.random).ln() / self.capacity as f64).exp();
        let skipped = unit_interval(&mut self.random).ln() / (1.0 - self.weight).ln();
        // A conversion from a float saturates, so an endless skip stays one.
        self.next = self.seen.saturating_add(1).saturating_add(skipped.floor() as u64);
    }
}

/// A number in (0, 1].
pub(crate) fn unit_interval(random: &mut Random) -> f64 {
    const STEPS: u64 = 1 << 53;
    (random.next_u64() % STEPS + 1) as f64 / STEPS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of each tenth of a long stream is close to a tenth of the sample.
    #[test]
    fn every_part_of_a_stream_is_sampled_alike() {
        let (capacity, all) = (10_000, 1_000_000);
        let mut reservoir = PointReservoir::new(capacity, 7);
        for at_ns in 0..all {
            reservoir.offer(LatencyPoint { at_ns, latency_ns: 1 });
        }
        let points = reservoir.into_points();
        assert_eq!(points.len(), capacity);
        for tenth in 0..10 {
            let inside = points.iter().filter(|point| point.at_ns * 10 / all == tenth).count();
            // Five standard deviations of a binomial of 10,000 and 0.1 are 150.
            assert!(inside.abs_diff(capacity / 10) < 150, "tenth {tenth} has {inside}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Timestamps: nanoseconds since the Unix epoch, negative before it, in 64 bits.
//!
//! They range from 1677 to 2262; the functions here clamp to that range.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Returns the timestamp of a number of seconds since the epoch, negative before it, plus
/// nanoseconds.
#[must_use]
pub fn of_parts(seconds: i64, nanoseconds: i64) -> i64 {
    let ns = i128::from(seconds) * i128::from(NS_PER_SECOND) + i128::from(nanoseconds);
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// Splits a timestamp into seconds, rounded down, and the remaining nanoseconds.
#[must_use]
pub fn parts(ns: i64) -> (i64, i64) {
    (ns.div_euclid(NS_PER_SECOND), ns.rem_euclid(NS_PER_SECOND))
}

/// Returns the timestamp of a clock's reading, which counts from the epoch.
#[must_use]
pub fn of_clock(now_ns: u64) -> i64 {
    i64::try_from(now_ns).unwrap_or(i64::MAX)
}

/// Returns the timestamp as the standard library's type.
#[must_use]
pub fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_sign_make_the_same_timestamp_again() {
        for ns in [i64::MIN, -NS_PER_SECOND, -1, 0, 1, NS_PER_SECOND, i64::MAX] {
            let (seconds, rest) = parts(ns);
            assert!((0..NS_PER_SECOND).contains(&rest));
            assert_eq!(of_parts(seconds, rest), ns);
        }
        assert_eq!(parts(-1), (-1, 999_999_999));
        assert_eq!(system_time(-1), UNIX_EPOCH - Duration::from_nanos(1));
        assert_eq!(system_time(1), UNIX_EPOCH + Duration::from_nanos(1));
    }

    #[test]
    fn what_is_out_of_range_is_the_nearest_that_is_not() {
        assert_eq!(of_parts(i64::MIN, 0), i64::MIN);
        assert_eq!(of_parts(i64::MAX, 999_999_999), i64::MAX);
        assert_eq!(of_clock(u64::MAX), i64::MAX);
    }
}

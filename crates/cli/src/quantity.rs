// SPDX-License-Identifier: Apache-2.0
//! Quantities: sizes, ages and times as users type them.

use crate::text::day_of;

const NS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Parses a number of bytes, such as `4096`, `64K`, `512M` or `2GiB`; units are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; expected, for example, 4096, 64K, 512M or 2G");
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A comparison with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityComparison {
    /// `+N`: more.
    More,
    /// `-N`: less.
    Less,
    /// `N`: equal.
    Equal,
}

/// Splits `+N`, `-N` or `N` into comparison and number.
pub fn comparison(text: &str) -> (QuantityComparison, &str) {
    match text.as_bytes().first() {
        Some(b'+') => (QuantityComparison::More, &text[1..]),
        Some(b'-') => (QuantityComparison::Less, &text[1..]),
        _ => (QuantityComparison::Equal, text),
    }
}

/// Parses a duration such as `90s`, `15m`, `6h`, `7d` or `2w`, in seconds.
pub fn age_seconds(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => SECONDS_PER_DAY,
        'w' => 7 * SECONDS_PER_DAY,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(seconds)
}

/// Parses a time as a timestamp: `2026-01-31`, `2026-01-31T17:30[:00]` (UTC), `@SECONDS` since the
/// Unix epoch, or an age before `now_ns` such as `7d`.
pub fn moment(text: &str, now_ns: i64) -> Result<i64, String> {
    let seconds = match text.strip_prefix('@') {
        Some(seconds) => seconds.parse().ok(),
        None => match age_seconds(text) {
            Some(age) => return Ok(now_ns.saturating_sub(nanoseconds(age))),
            None => date_seconds(text),
        },
    };
    seconds.and_then(|seconds: i64| seconds.checked_mul(NS_PER_SECOND)).ok_or_else(|| {
        format!("{text:?} is not a time; expected 2026-01-31, 2026-01-31T17:30, @1769880600 or 7d")
    })
}

/// Converts seconds to nanoseconds, saturating at the largest timestamp.
fn nanoseconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(NS_PER_SECOND)
}

fn date_seconds(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let day = day_of(date.next()??, date.next()??, date.next()??)?;
    let mut seconds = 0;
    let parts: Vec<&str> = time.trim_end_matches('Z').split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    for (part, (limit, unit)) in parts.iter().zip([(24, 3600), (60, 60), (60, 1)]) {
        let value = part.parse::<i64>().ok().filter(|value| (0..limit).contains(value))?;
        seconds += value * unit;
    }
    Some(day * SECONDS_PER_DAY.cast_signed() + seconds)
}

/// Parses permission bits in octal, such as `644` or `0755`.
pub fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{text:?} is not a mode; expected octal digits such as 644 or 0755"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, number) in
            [("0", 0), ("12", 12), ("4k", 4096), ("1MiB", 1 << 20), ("2G", 2 << 30)]
        {
            assert_eq!(bytes(text), Ok(number));
        }
        for text in ["", "k", "1x", "-1", "99999999999T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_dates_seconds_or_ages() {
        let now_ns = 1_800_000_000 * NS_PER_SECOND;
        for (text, seconds) in [
            ("@5", 5),
            ("1970-01-02", 86_400),
            ("1970-01-01T01:01", 3_660),
            ("1970-01-01T01:01:07Z", 3_667),
            ("2d", 1_800_000_000 - 172_800),
        ] {
            assert_eq!(moment(text, now_ns), Ok(seconds * NS_PER_SECOND), "{text}");
        }
        for text in ["", "x", "2026-02-30", "2026-01-01T24:00", "2026-01-01T1", "d", "@"] {
            assert!(moment(text, now_ns).is_err(), "{text}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0755"), Ok(0o755));
        assert!(mode("0999").is_err());
        assert!(mode("17777").is_err());
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Decimal seconds: times as the logs of tracers write them, without rounding.

/// Nanoseconds of a decimal number of seconds.
pub fn seconds_ns(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_decimal = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !is_decimal(whole) || !is_decimal(fraction) {
        return None;
    }
    let digits = u32::try_from(fraction.len()).ok()?;
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let whole_ns = whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    whole_ns.checked_add(fraction * 10_u64.pow(9 - digits))
}

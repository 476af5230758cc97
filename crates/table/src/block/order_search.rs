// SPDX-License-Identifier: Apache-2.0
//! Search for a row by the last integer of its key, which is evenly spread over the rows of a
//! block.

/// The row at which `order`, which is after the first of `bounds` and at most the second, should be
/// among `rows`.
#[inline]
pub(super) fn guess(rows: usize, (below, above): (u64, u64), order: u64) -> usize {
    let share = (order - below) as f64 / (above - below) as f64;
    ((share * (rows - 1) as f64) as usize).clamp(1, rows - 1)
}

/// The first of `rows` whose `value` is at least `order`; the value of the first row must be less
/// than `order`, and that of the last must not be. Searches from `guess` in growing steps. Returns
/// `None` as soon as `value` does.
#[inline]
pub(super) fn lower_bound(
    rows: usize,
    guess: usize,
    order: u64,
    mut value: impl FnMut(usize) -> Option<u64>,
) -> Option<usize> {
    // The answer is in (low, high]: row `low` is below `order`, row `high` is not.
    let (mut low, mut high) = (0, rows - 1);
    let mut step = 1;
    if value(guess)? < order {
        low = guess;
        while low + step < high && value(low + step)? < order {
            low += step;
            step *= 2;
        }
        high = high.min(low + step);
    } else {
        high = guess;
        while high > low + step && value(high - step)? >= order {
            high -= step;
            step *= 2;
        }
        low = low.max(high.saturating_sub(step));
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if value(middle)? < order {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high)
}

// SPDX-License-Identifier: Apache-2.0
//! Rank numbers: the numbers of processes that together are the ranks of a trace.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Numbers of ranks that a job can have; others are not asked for.
const RANKS_MAX: u32 = 1 << 31;

/// Gives each of `all` its number: the one that it asks for, if it is the first to do so, and else one after all
/// that were asked for. Those that transfer bytes come first: programs that start ranks ask for the same numbers.
pub fn number_ranks<K: Copy + Eq + Hash>(
    asked: impl Fn(K) -> Option<u32>,
    transferring: &[K],
    all: &[K],
) -> HashMap<K, u32> {
    let (mut numbers, mut taken) = (HashMap::new(), BTreeSet::new());
    for key in transferring.iter().chain(all) {
        if !numbers.contains_key(key)
            && let Some(number) = asked(*key).filter(|number| *number < RANKS_MAX)
            && taken.insert(number)
        {
            numbers.insert(*key, number);
        }
    }
    let mut next = taken.last().map_or(0, |last| last + 1);
    for key in all {
        numbers.entry(*key).or_insert_with(|| {
            next += 1;
            next - 1
        });
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_transfers_gets_the_number() {
        let asked = |key: char| {
            Some(match key {
                'a' | 'b' | 'c' => 3,
                'd' => 1,
                _ => return None,
            })
        };
        let numbers = number_ranks(asked, &['b', 'd', 'c'], &['a', 'b', 'x', 'd', 'c']);
        let expected = [('b', 3), ('d', 1), ('a', 4), ('x', 5), ('c', 6)];
        assert_eq!(numbers, expected.into_iter().collect());
    }
}

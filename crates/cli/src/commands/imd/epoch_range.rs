// SPDX-License-Identifier: Apache-2.0
//! Epoch range: the epochs that a command works on, by number or by step.

use std::ops::Range;

use clap::Args;
use esker_base::{Error, Kind, Result};

/// A range of epochs, by number or by step.
#[derive(Args, Clone, Debug)]
pub struct EpochRange {
    /// Only these epochs, by number: N, or A..B excluding B
    #[arg(long, alias = "epoch", value_parser = range, value_name = "A..B")]
    epochs: Option<Range<u64>>,
    /// Only the epochs of these steps: N, or A..B excluding B
    #[arg(long, alias = "step", value_parser = range, value_name = "A..B", conflicts_with = "epochs")]
    steps: Option<Range<u64>>,
}

impl EpochRange {
    /// True if the user gave a range.
    pub const fn is_given(&self) -> bool {
        self.epochs.is_some() || self.steps.is_some()
    }

    /// The numbers of the selected epochs; `steps` has the ascending steps of all epochs.
    ///
    /// # Errors
    /// `NotFound`, listing the existing epochs or steps, if the range selects none.
    pub fn among(&self, steps: &[u64]) -> Result<Range<u32>> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let absent = |what: String| Err(Error::new(Kind::NotFound, what));
        if let Some(epochs) = &self.epochs {
            let count = steps.len() as u64;
            if epochs.start >= count {
                let there = match count {
                    0 => "the directory has no epoch".into(),
                    1 => "its only epoch is 0".into(),
                    _ => format!("its epochs are 0 to {}", count - 1),
                };
                return absent(format!("no epoch {}: {there}", epochs.start));
            }
            return Ok(number(epochs.start)..number(epochs.end));
        }
        let Some(wanted) = &self.steps else { return Ok(0..u32::MAX) };
        let first = steps.partition_point(|step| *step < wanted.start);
        let end = steps.partition_point(|step| *step < wanted.end);
        if first >= end {
            let (from, to) = (wanted.start, wanted.end - 1);
            let there = match steps {
                [] => "the directory has no epoch".into(),
                [one] => format!("its only epoch is of step {one}"),
                [least, .., most] => {
                    format!("its {} epochs are of steps {least} to {most}", steps.len())
                }
            };
            let wanted = if from == to {
                format!("step {from}")
            } else {
                format!("a step from {from} to {to}")
            };
            return absent(format!("no epoch of {wanted}: {there}"));
        }
        Ok(first as u32..end as u32)
    }
}

/// Parses `N` or `A..B`, which must not be empty.
fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is not a range; expected, for example, 3 or 2..5");
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    match text.split_once("..") {
        Some((start, end)) => match number(start)?..number(end)? {
            range if range.is_empty() => {
                Err(format!("{text:?} has nothing in it: A..B is from A to below B"))
            }
            range => Ok(range),
        },
        None => number(text).map(|only| only..only.saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_name_epochs() {
        let among = |steps: &str| {
            let steps = Some(range(steps).expect("a range"));
            EpochRange { epochs: None, steps }.among(&[0, 100, 250])
        };
        assert_eq!(among("100").expect("there"), 1..2);
        assert_eq!(among("0..101").expect("there"), 0..2);
        assert_eq!(among("50..1000").expect("there"), 1..3);
        let error = among("101").expect_err("between two");
        assert!(error.to_string().contains("its 3 epochs are of steps 0 to 250"), "{error}");
        assert_eq!(error.kind(), Kind::NotFound);
        for bad in ["a", "5..5", "3..1", "1..", "..2"] {
            assert!(range(bad).is_err(), "{bad}");
        }
        assert_eq!(range("18446744073709551615").expect("a number").start, u64::MAX);
    }
}

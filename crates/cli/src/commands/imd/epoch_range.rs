//! Epoch range: which epochs a command is asked for, by number or by step.

use std::ops::Range;

use clap::Args;
use esker_base::{Error, Kind, Result};

/// Epochs, by one or the other.
#[derive(Args, Clone, Debug)]
pub struct EpochRange {
    /// Only these epochs, by number: N, or A..B without B
    #[arg(long, alias = "epoch", value_parser = range, value_name = "A..B")]
    epochs: Option<Range<u64>>,
    /// Only the epochs of these steps: N, or A..B without B
    #[arg(long, alias = "step", value_parser = range, value_name = "A..B", conflicts_with = "epochs")]
    steps: Option<Range<u64>>,
}

impl EpochRange {
    /// Whether the user gave any.
    pub const fn is_given(&self) -> bool {
        self.epochs.is_some() || self.steps.is_some()
    }

    /// The numbers of those epochs, where epochs have `steps`, which ascend.
    ///
    /// # Errors
    /// `Invalid` names the steps that there are, if none is among those given.
    pub fn among(&self, steps: &[u64]) -> Result<Range<u32>> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        if let Some(epochs) = &self.epochs {
            return Ok(number(epochs.start)..number(epochs.end));
        }
        let Some(wanted) = &self.steps else { return Ok(0..u32::MAX) };
        let first = steps.partition_point(|step| *step < wanted.start);
        let end = steps.partition_point(|step| *step < wanted.end);
        if first >= end {
            let (from, to) = (wanted.start, wanted.end.saturating_sub(1));
            let there = match steps {
                [] => "the directory has no epoch".into(),
                [one] => format!("its only epoch is of step {one}"),
                [least, .., most] => {
                    format!("its {} epochs are of steps {least} to {most}", steps.len())
                }
            };
            let what = format!("no epoch of a step from {from} to {to}: {there}");
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(first as u32..end as u32)
    }
}

/// Reads `N` or `A..B`.
fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is no range; expected as 3 or 2..5");
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    match text.split_once("..") {
        Some((start, end)) => Ok(number(start)?..number(end)?),
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
        assert!(among("5..5").is_err());
        assert!(range("a").is_err());
    }
}

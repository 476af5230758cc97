// SPDX-License-Identifier: Apache-2.0
//! Standby: tries to begin a server until it can.
//!
//! A standby outlives what passes: another server that runs, a store that does not answer, a disk
//! that is full. It ends for what stays as it is until somebody changes it, so that its user finds
//! out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_base::{Error, Kind, Result};

/// Calls `start` every `interval` until it succeeds, or fails in a way that does not pass. Hands
/// failures that pass to `report`, one of several alike. Returns `None` if `is_ending` first.
///
/// # Errors
/// Those of `start` that do not pass.
pub fn stand_by<T>(
    mut start: impl FnMut() -> Result<T>,
    (interval, is_ending): (Duration, &AtomicBool),
    mut report: impl FnMut(&Error),
) -> Result<Option<T>> {
    let mut reported = None;
    loop {
        match start() {
            Err(error) if may_pass(error.kind()) => {
                // Ages of servers, and the like, change all the time.
                let text = error.to_string().replace(|digit: char| digit.is_ascii_digit(), "");
                if reported.as_ref() != Some(&text) {
                    report(&error);
                    reported = Some(text);
                }
            }
            started => return started.map(Some),
        }
        if is_ending.load(Ordering::Relaxed) {
            return Ok(None);
        }
        std::thread::sleep(interval);
    }
}

/// True if a later attempt may succeed although nobody does anything about the failure.
fn may_pass(kind: Kind) -> bool {
    match kind {
        // Another server runs, or another standby came first.
        Kind::Conflict | Kind::Fenced => true,
        // The store, or its device, fails. A session that failed to sync is closed; the next attempt
        // opens another.
        Kind::Unavailable | Kind::DeviceFailed | Kind::NoSpace | Kind::Closed => true,
        Kind::TooManyOpenFiles => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of starts that fail with `failures`, and then succeed; and what was reported.
    fn outcome(failures: &[(Kind, &str)]) -> (Result<Option<()>>, Vec<String>) {
        let (mut failures, mut reported) = (failures.iter(), Vec::new());
        let start = || match failures.next() {
            Some((kind, text)) => Err(Error::new(*kind, *text)),
            None => Ok(()),
        };
        let how = (Duration::ZERO, &AtomicBool::new(false));
        let outcome = stand_by(start, how, |error| reported.push(error.to_string()));
        (outcome, reported)
    }

    /// Symptom: a standby ended, hours before it was needed, when the store did not answer for a
    /// moment. Cause: only another server that ran was waited for. Fix: so is all that passes.
    #[test]
    fn what_passes_is_waited_for_and_reported_once() {
        let failures = [
            (Kind::Conflict, "held, seen 1 s ago"),
            (Kind::Conflict, "held, seen 12 s ago"),
            (Kind::Unavailable, "no answer"),
            (Kind::Unavailable, "no answer"),
            (Kind::DeviceFailed, "input/output error"),
            (Kind::NoSpace, "full"),
            (Kind::Fenced, "another standby came first"),
            (Kind::Conflict, "held, seen 2 s ago"),
        ];
        let (outcome, reported) = outcome(&failures);
        assert!(outcome.expect("it passed").is_some());
        let shown = [0, 2, 4, 5, 6, 7].map(|index| failures[index].1);
        assert_eq!(reported, shown);
    }

    #[test]
    fn what_does_not_pass_ends_a_standby() {
        for kind in [Kind::NotFound, Kind::Denied, Kind::Invalid, Kind::Corrupt, Kind::ReadOnly] {
            let (outcome, reported) = outcome(&[(Kind::Conflict, "held"), (kind, "as it is")]);
            assert_eq!(outcome.expect_err("it stays").kind(), kind);
            assert_eq!(reported, ["held"]);
        }
    }

    #[test]
    fn a_standby_that_is_to_end_starts_nothing_more() {
        let how = (Duration::ZERO, &AtomicBool::new(true));
        let mut starts = 0;
        let start = || {
            starts += 1;
            Err::<(), _>(Error::new(Kind::Conflict, "held"))
        };
        assert!(stand_by(start, how, |_| ()).expect("it is to end").is_none());
        assert_eq!(starts, 1);
    }
}

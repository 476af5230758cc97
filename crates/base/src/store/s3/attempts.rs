// SPDX-License-Identifier: Apache-2.0
//! Attempts: time limits of requests, and when they are retried.
//!
//! The client below sends each request once; this is the only loop around it. A request that got no
//! answer, half an answer or a server error is retried after a pause, which doubles each time and
//! is randomized so that many clients do not return together. Every retried operation gives the
//! same result twice: reads, deletions, parts of uploads, and conditional writes that carry a mark
//! (`connection.rs`).
//! Invariant: a server that hangs is given up after `timeout`, plus the time that the request's
//! bytes take on a slow line.

use std::time::Duration;

use object_store::{Error as S3Error, Result as S3Result};

use super::failure;
use crate::Random;

/// The time after which a person gives up.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// One attempt may take one part in this many of the time, so that a dead connection does not use
/// up all of it.
const TIMEOUT_SHARES: u32 = 3;
/// The slowest line on which large requests still succeed, in bytes per second.
const LINE_BYTES_MIN: u64 = 1 << 20;

/// More attempts than fit into [`TIMEOUT`], which ends them first.
pub(super) const ATTEMPTS_MAX: u32 = 20;
/// Bounds of the pauses between attempts: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Limits on the number and duration of a request's attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryLimits {
    /// Maximum time for all attempts of a request, without the transfer of its bytes.
    pub(super) timeout: Duration,
    /// Maximum number of attempts of a request, at least 1.
    pub(super) attempts_max: u32,
}

impl RetryLimits {
    /// Calls `send` until it succeeds, fails permanently, or the time for a request of `bytes` is
    /// up.
    ///
    /// `send` bounds each of its requests by [`RetryLimits::within`].
    pub(super) async fn repeat<T, F>(&self, bytes: u64, mut send: impl FnMut() -> F) -> S3Result<T>
    where
        F: Future<Output = S3Result<T>>,
    {
        let mut last = None;
        let attempts = async {
            let mut pause = PAUSE_MIN;
            let mut sent = 0;
            loop {
                let outcome = send().await;
                sent += 1;
                match outcome {
                    Err(error) if sent < self.attempts_max && failure::is_transient(&error) => {
                        last = Some(error);
                    }
                    outcome => return outcome,
                }
                tokio::time::sleep(spread(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        let total = self.timeout + transfer_time(bytes);
        match tokio::time::timeout(total, attempts).await {
            Ok(outcome) => outcome,
            Err(_) => Err(last.unwrap_or_else(|| no_answer(total))),
        }
    }

    /// Repeats one request, which `send` makes, as [`RetryLimits::repeat`] does.
    pub(super) async fn request<T, F>(&self, bytes: u64, mut send: impl FnMut() -> F) -> S3Result<T>
    where
        F: Future<Output = S3Result<T>>,
    {
        self.repeat(bytes, || self.within(bytes, send())).await
    }

    /// Returns the outcome of `request`, which transfers `bytes`, or an error after the time of one
    /// attempt.
    pub(super) async fn within<T>(
        &self,
        bytes: u64,
        request: impl Future<Output = S3Result<T>>,
    ) -> S3Result<T> {
        let time = self.timeout / TIMEOUT_SHARES + transfer_time(bytes);
        match tokio::time::timeout(time, request).await {
            Ok(outcome) => outcome,
            Err(_) => Err(no_answer(time)),
        }
    }
}

fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / LINE_BYTES_MIN)
}

/// Returns a random time between half of `pause` and all of it.
fn spread(pause: Duration) -> Duration {
    let half_ns = u64::try_from(pause.as_nanos() / 2).unwrap_or(u64::MAX / 2);
    Duration::from_nanos(half_ns + Random::from_system().below(half_ns))
}

fn no_answer(time: Duration) -> S3Error {
    let source = format!("no answer within {:.1} s", time.as_secs_f64()).into();
    S3Error::Generic { store: "S3", source }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SHORT: RetryLimits =
        RetryLimits { timeout: Duration::from_millis(300), attempts_max: ATTEMPTS_MAX };

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(future)
    }

    fn generic(what: &str) -> S3Error {
        S3Error::Generic { store: "S3", source: what.to_owned().into() }
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        let sent = Cell::new(0);
        let send = || {
            sent.set(sent.get() + 1);
            let outcome = if sent.get() < 3 { Err(generic("broken pipe")) } else { Ok(sent.get()) };
            std::future::ready(outcome)
        };
        assert_eq!(run(SHORT.request(0, send)).expect("the third time"), 3);
    }

    #[test]
    fn what_will_not_pass_is_not() {
        let sent = Cell::new(0);
        let send = || {
            sent.set(sent.get() + 1);
            std::future::ready(Err::<(), _>(S3Error::PermissionDenied {
                path: String::new(),
                source: "no".into(),
            }))
        };
        run(SHORT.request(0, send)).expect_err("denied");
        assert_eq!(sent.get(), 1);
        let few = RetryLimits { attempts_max: 2, ..SHORT };
        let send = || {
            sent.set(sent.get() + 1);
            std::future::ready(Err::<(), _>(generic("broken pipe")))
        };
        run(few.request(0, send)).expect_err("it goes on failing");
        assert_eq!(sent.get(), 3);
    }

    #[test]
    fn a_server_that_hangs_is_given_up() {
        let sent = Cell::new(0);
        let send = || {
            sent.set(sent.get() + 1);
            std::future::pending::<S3Result<()>>()
        };
        let error = run(SHORT.request(0, send)).expect_err("no answer");
        assert!(error.to_string().contains("no answer within"), "{error}");
        assert!(sent.get() > 1, "one attempt is not all of the time");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Freeze: holds up all changes at a seat while the parts of a snapshot are taken, so that the
//! snapshot has no change without those that came before it at any seat.
//!
//! A freeze ends with a thaw, with the connection that began it, or after [`FREEZE_MAX`]; then its
//! snapshot fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_base::{Clock, Error, Kind, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Longest time for which changes wait.
const FREEZE_MAX: Duration = Duration::from_secs(10);

/// The freeze of a seat.
#[derive(Debug, Default)]
pub(super) struct Freeze {
    /// The holder, which holds up changes, and since when, by the monotonic clock.
    holder: Mutex<Option<(u64, u64)>>,
    thawed: Notify,
    /// The last holder that was drawn.
    drawn: AtomicU64,
}

impl Freeze {
    /// Returns a number for a new holder.
    pub fn draw_holder(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins to hold up changes for `holder`. Those under way may still finish.
    ///
    /// # Errors
    /// `Conflict` while another one does.
    pub fn begin(&self, holder: u64, clock: &dyn Clock) -> Result<()> {
        let mut held = self.holder.lock();
        if held.is_some_and(|held| held.0 != holder && !is_over(held, clock)) {
            let what = "another snapshot of the namespace is being taken; try again";
            return Err(Error::new(Kind::Conflict, what));
        }
        *held = Some((holder, clock.monotonic_ns()));
        Ok(())
    }

    /// Fails unless changes were held up for `holder` since it began.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn check(&self, holder: u64, clock: &dyn Clock) -> Result<()> {
        if self.holder.lock().is_some_and(|held| held.0 == holder && !is_over(held, clock)) {
            return Ok(());
        }
        let what = "the parts of the snapshot took too long; try again";
        Err(Error::new(Kind::Conflict, what))
    }

    /// Ends what `holder` began, if it has not ended yet.
    pub fn end(&self, holder: u64) {
        let mut held = self.holder.lock();
        if held.is_some_and(|held| held.0 == holder) {
            *held = None;
            self.thawed.notify_waiters();
        }
    }

    /// True while changes have to wait.
    pub fn is_frozen(&self, clock: &dyn Clock) -> bool {
        let mut held = self.holder.lock();
        // A freeze that is over does not begin again.
        *held = held.filter(|held| !is_over(*held, clock));
        held.is_some()
    }

    /// Returns once changes may go on.
    pub async fn thawed(&self, clock: &dyn Clock) {
        loop {
            let thawed = self.thawed.notified();
            if !self.is_frozen(clock) {
                return;
            }
            let _ = tokio::time::timeout(FREEZE_MAX / 10, thawed).await;
        }
    }
}

fn is_over((_, since_ns): (u64, u64), clock: &dyn Clock) -> bool {
    u128::from(clock.monotonic_ns().saturating_sub(since_ns)) > FREEZE_MAX.as_nanos()
}

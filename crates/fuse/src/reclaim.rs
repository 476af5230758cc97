//! Giving up garbage of a mounted session's data logs in the background.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use esker_base::Kind;

use crate::front::Front;

/// How often the thread compares the garbage with its bound: two counters. Writers bound it
/// themselves if it grows faster.
const INTERVAL: Duration = Duration::from_millis(100);

impl Front {
    /// Gives up garbage whenever there is much of it, until the sender of `end` is gone.
    pub(crate) fn reclaim_until(&self, end: &Receiver<()>) {
        let Some(session) = self.view.session() else { return };
        while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            match session.give_up_garbage() {
                Ok(_) => {}
                // Requests are answered with the same.
                Err(error) if matches!(error.kind(), Kind::Closed | Kind::Fenced) => return,
                Err(error) => self.report(&error),
            }
        }
    }
}

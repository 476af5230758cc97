// SPDX-License-Identifier: Apache-2.0
//! Reclaim: frees garbage in a mounted session's data logs in the background.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use esker_base::Kind;

use crate::mount_state::MountState;

/// Interval at which the thread compares two counters, the garbage and its bound. If garbage grows
/// faster, the writers themselves bound it.
const INTERVAL: Duration = Duration::from_millis(100);

impl MountState {
    /// Frees garbage whenever there is much of it, until the sender of `end` is dropped.
    pub(crate) fn reclaim_until(&self, end: &Receiver<()>) {
        let Some(session) = self.view.session() else { return };
        while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            match session.give_up_garbage() {
                Ok(_) => {}
                // Requests get the same error.
                Err(error) if matches!(error.kind(), Kind::Closed | Kind::Fenced) => return,
                Err(error) => self.report(&error),
            }
        }
    }
}

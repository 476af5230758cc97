// SPDX-License-Identifier: Apache-2.0
//! Reclaim: works for a mounted session in the background. It frees garbage in data logs, and writes
//! what programs have written to files that they keep open.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use esker_base::Kind;

use crate::mount_state::MountState;

/// Interval at which the thread compares two counters, the garbage and its bound. If garbage grows
/// faster, the writers themselves bound it.
const INTERVAL: Duration = Duration::from_millis(100);

/// Number of intervals, 5 s, after which changes of open files are written.
const FLUSH_ROUNDS: u32 = 50;

impl MountState {
    /// Frees garbage whenever there is much of it, and writes changes of open files, until the
    /// sender of `end` is dropped.
    pub(crate) fn reclaim_until(&self, end: &Receiver<()>) {
        let Some(session) = self.view.session() else { return };
        let mut rounds = 0u32;
        while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            rounds = rounds.wrapping_add(1);
            let flushed = match rounds.is_multiple_of(FLUSH_ROUNDS) {
                true => session.flush_changed_files(),
                false => session.flush_closed_files(),
            };
            let worked = match flushed {
                // Programs get the error from their own changes.
                Err(error) if error.kind() == Kind::NoSpace => Ok(()),
                flushed => flushed,
            };
            match worked.and_then(|()| session.give_up_garbage().map(drop)) {
                Ok(()) => {}
                // Requests get the same error.
                Err(error) if matches!(error.kind(), Kind::Closed | Kind::Fenced) => return,
                Err(error) => self.report(&error),
            }
        }
    }
}

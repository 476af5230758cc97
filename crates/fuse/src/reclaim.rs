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

/// Number of intervals, 1 s, after which closed files are written that found no room.
const CLOSED_ROUNDS: u32 = 10;
/// Number of intervals, 5 s, after which changes of open files are written.
const FLUSH_ROUNDS: u32 = 50;

impl MountState {
    /// Frees garbage whenever there is much of it, and writes changes of open files, until the
    /// sender of `end` is dropped.
    pub(crate) fn reclaim_until(&self, end: &Receiver<()>) {
        let Some(session) = self.view.session() else { return };
        let (mut rounds, mut reported) = (0u32, String::new());
        while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            rounds = rounds.wrapping_add(1);
            let flushed = match rounds {
                rounds if rounds.is_multiple_of(FLUSH_ROUNDS) => session.flush_changed_files(),
                rounds if rounds.is_multiple_of(CLOSED_ROUNDS) => session.flush_closed_files(),
                _ => Ok(()),
            };
            match flushed {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), Kind::Closed | Kind::Fenced) => return,
                // Programs get the error from their own changes.
                Err(error) if error.kind() == Kind::NoSpace => {}
                Err(error) if error.to_string() == reported => {}
                Err(error) => {
                    self.report(&error);
                    reported = error.to_string();
                }
            }
            match session.give_up_garbage() {
                Ok(_) => {}
                // Requests get the same error.
                Err(error) if matches!(error.kind(), Kind::Closed | Kind::Fenced) => return,
                Err(error) => self.report(&error),
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Wait notice: says what a client waits for, so that a command is not silent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use esker_base::Clock;
use esker_base::clock::SystemClock;

use super::LiveConnection;
use super::reconnect::command_to_serve;

/// Time without an answer after which it is said what the client waits for.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A function that is told what a client waits for.
#[derive(Clone)]
pub struct WaitNotice(Arc<dyn Fn(String) + Send + Sync>);

impl WaitNotice {
    /// Calls `tell` once for each wait.
    #[must_use]
    pub fn new(tell: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for WaitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitNotice")
    }
}

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// A server that accepts the connection.
    ForServer,
    /// An answer of the server that it is connected to.
    ForAnswer,
}

impl LiveConnection {
    /// Says what the client waits for, unless that was said or it has not waited for long.
    pub(super) fn give_notice(&mut self, waiting: Waiting) {
        let since_ns = self.broke_ns.map_or(self.heard_ns, |broke_ns| broke_ns.max(self.heard_ns));
        let waited_ns = SystemClock.monotonic_ns().saturating_sub(since_ns);
        let Some(notice) = self.notice.as_ref().filter(|_| !self.is_noticed) else { return };
        if u128::from(waited_ns) < SILENCE_MAX.as_nanos() {
            return;
        }
        let (of, command) = command_to_serve((&self.name, self.seat), self.is_alone);
        notice.0(match waiting {
            Waiting::ForServer => {
                let patience = self.patience.as_secs();
                format!("waiting up to {patience} s for a server of {of}: `{command}` runs one")
            }
            Waiting::ForAnswer if self.is_alone => format!(
                "the server of {of} does not answer; waiting for it, or for another one: \
                 `{command} --take-over` replaces it"
            ),
            // It may wait for the server of another seat.
            Waiting::ForAnswer => format!(
                "the server of {of} has no answer yet, and may wait for that of another seat: \
                 `esker live status {}` shows which seats have none",
                self.name
            ),
        });
        self.is_noticed = true;
    }
}

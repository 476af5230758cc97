// SPDX-License-Identifier: Apache-2.0
//! Reconnect: finds the server that writes the namespace now, and sends it all pending requests.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::stack::namespace::FollowLinks;

use super::wait_notice::Waiting;
use super::{LiveConnection, may_reconnect};
use crate::client::endpoint::Endpoint;
use crate::client::pending::PendingRequest;
use crate::client::{LiveDir, Request};
use crate::server_address::ServerAddress;
use crate::wire::PATH_BYTES_MAX;

/// First and longest pause between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Why a request that would not do the same again fails.
const NOT_REPEATED: &str = "the server went away before it answered; `esker names` shows whether the \
                            snapshot was published";
/// Why an old change fails: a server that has forgotten the client would carry it out again, over what
/// others have done since.
const LOST_FOR_TOO_LONG: &str = "the connection was lost for too long to repeat the request; whether \
                                 it was carried out is unknown";

impl LiveConnection {
    /// Connects to the server that the store names, and sends all pending requests again.
    pub(super) fn reconnect(&mut self, why: Option<Error>) -> Result<()> {
        self.endpoint = None;
        self.reconnects += 1;
        let clock = SystemClock;
        let patience_ns = u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX);
        let broke_ns = *self.broke_ns.get_or_insert_with(|| clock.monotonic_ns());
        let since_ns = if self.is_unserved { self.heard_ns } else { broke_ns.max(self.heard_ns) };
        let deadline_ns = since_ns.saturating_add(patience_ns);
        let mut last = why;
        self.fail_requests(|request| !request.is_repeatable(), NOT_REPEATED);
        let endpoint = loop {
            // A server that accepts connections and ends them without an answer is none.
            if std::mem::take(&mut self.awaits_first_answer) && clock.monotonic_ns() >= deadline_ns
            {
                let error = unserved((&self.name, self.seat), self.is_alone, last);
                self.fail_pending(&error);
                return Err(error);
            }
            self.give_notice(Waiting::ForServer);
            if let Some(pause) = self.pause {
                std::thread::sleep(pause);
            }
            self.pause = Some(self.pause.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX)));
            let addresses = ServerAddress::all(&*self.store, (&self.name, self.seat));
            let addresses = addresses.unwrap_or_else(|error| {
                last = Some(error);
                Vec::new()
            });
            for address in addresses {
                match Endpoint::connect(&address, &self.who) {
                    Ok((endpoint, welcome)) => {
                        last = None;
                        self.changes.meet(welcome);
                        self.endpoint = Some(Arc::new(endpoint));
                        self.instance = address.instance;
                        break;
                    }
                    Err(error) => last = Some(error),
                }
            }
            if let Some(endpoint) = self.endpoint.take() {
                break endpoint;
            }
            // A server that refused the client will do so again.
            let is_refused = last.as_ref().is_some_and(|error| !may_reconnect(error));
            if is_refused || clock.monotonic_ns() >= deadline_ns {
                let error = unserved((&self.name, self.seat), self.is_alone, last);
                self.fail_pending(&error);
                return Err(error);
            }
        };
        self.endpoint = Some(endpoint);
        self.awaits_first_answer = true;
        if self.is_unserved {
            self.is_unserved = false;
            self.heard_ns = clock.monotonic_ns();
        }
        self.received.clear();
        self.send.clear();
        self.sent = 0;
        let now_ns = clock.monotonic_ns();
        self.fail_requests(|request| request.may_be_forgotten(now_ns), LOST_FOR_TOO_LONG);
        let answered_below = self.oldest();
        for request in &mut self.pending {
            request.move_to_new_connection();
            open_directories(request.dirs(), &mut self.send);
            request.put(&mut self.send, answered_below);
        }
        Ok(())
    }

    /// Fails all requests without an answer: whether they were carried out is unknown, and they are
    /// not repeated.
    fn fail_pending(&mut self, why: &Error) {
        for request in std::mem::take(&mut self.pending) {
            let what = format!("{why}; whether the request was carried out is unknown");
            self.put_answer(request.number, Err(Error::new(why.kind(), what)));
        }
        self.is_unserved = true;
    }

    /// Fails the requests without an answer for which `fails` holds, and does not repeat them.
    fn fail_requests(&mut self, fails: impl Fn(&PendingRequest) -> bool, why: &str) {
        let failed = self.pending.iter().filter(|request| fails(request));
        let failed: Vec<u64> = failed.map(|request| request.number).collect();
        self.pending.retain(|request| !fails(request));
        for number in failed {
            self.put_answer(number, Err(Error::new(Kind::Unavailable, why)));
        }
    }
}

/// Appends requests that have a server open `dirs`. Their answers have number 0, which no pending
/// request has.
pub(super) fn open_directories(dirs: &[LiveDir], out: &mut Vec<u8>) {
    let is_root = |dir: &LiveDir| dir.id == DirId::ROOT;
    for dir in dirs.iter().filter(|dir| !is_root(dir) && dir.place.path.len() < PATH_BYTES_MAX) {
        PendingRequest::new(0, Request::resolve(&dir.place, FollowLinks::Yes), 0).put(out, 0);
    }
}

fn unserved(of: (&str, u16), is_alone: bool, last: Option<Error>) -> Error {
    let name = of.0;
    let (of, command) = command_to_serve(of, is_alone);
    let advice = match is_alone {
        true => format!("`{command}` runs one"),
        false => {
            format!("`{command}` runs one, `esker live status {name}` shows which seats have one")
        }
    };
    match last {
        Some(error) if !may_reconnect(&error) => error,
        Some(error) => {
            let what = format!(
                "no server of {of} can be reached: {error}; {advice}; with --take-over also in place \
                 of one that hangs"
            );
            Error::new(Kind::Unavailable, what)
        }
        None => Error::new(Kind::Unavailable, format!("{of} has no server: {advice}")),
    }
}

/// Returns `seat` of the live namespace `name`, the only one if `is_alone`, as messages name it, and the
/// command that serves it.
pub(super) fn command_to_serve((name, seat): (&str, u16), is_alone: bool) -> (String, String) {
    if is_alone {
        return (name.to_owned(), format!("esker live serve {name}"));
    }
    (format!("seat {seat} of {name}"), format!("esker live serve {name} --seats {seat}"))
}

// SPDX-License-Identifier: Apache-2.0
//! Waiting socket: the socket of a connection without the connection, so that a thread can wait for
//! answers while others submit requests.

use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::endpoint::Endpoint;

/// After this long without an answer, the client checks whether another server has taken over.
const SILENCE: Duration = Duration::from_millis(500);

/// The socket of a connection, without the connection.
#[derive(Debug)]
pub(super) struct WaitingSocket {
    endpoint: Option<Arc<Endpoint>>,
    wanted: PollFlags,
}

/// State of a socket after a wait.
#[derive(Debug)]
pub(super) enum SocketState {
    /// Nothing has arrived for as long as a server may be silent without being checked.
    Silent,
    /// Bytes have arrived or may be sent, or the wait was interrupted.
    Ready,
    Broken(Error),
}

impl WaitingSocket {
    pub(super) fn new(endpoint: Option<Arc<Endpoint>>, wanted: PollFlags) -> Self {
        Self { endpoint, wanted }
    }

    /// Waits until the socket can be used, or for [`SILENCE`].
    pub(super) fn wait(&self) -> SocketState {
        let Some(endpoint) = &self.endpoint else {
            return SocketState::Broken(Error::new(Kind::Unavailable, "not connected"));
        };
        let mut polled = [PollFd::new(&**endpoint, self.wanted)];
        let silence = Timespec { tv_sec: 0, tv_nsec: SILENCE.subsec_nanos().into() };
        match poll(&mut polled, Some(&silence)) {
            Ok(0) => SocketState::Silent,
            Ok(_) | Err(rustix::io::Errno::INTR) => SocketState::Ready,
            Err(errno) => {
                let what = "wait for the server of a live namespace";
                SocketState::Broken(Error::io(errno.into(), what))
            }
        }
    }
}

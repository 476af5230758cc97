// SPDX-License-Identifier: Apache-2.0
//! Acceptor: accepts connections, and tracks those that have not authenticated.
//!
//! At most [`STRANGERS_MAX`] connections are unauthenticated at a time. Beyond that the rank stops
//! accepting until some authenticate or time out. The kernel's backlog absorbs the rest: most of
//! them are ranks of a large job that all start at once, so refusing them would be wrong. The rank
//! also pauses after a failed accept, such as EMFILE, since level-triggered epoll would otherwise
//! spin.
//! Invariant: `strangers` counts the connections of which [`PeerRole::is_stranger`] holds.
//!
//! [`PeerRole::is_stranger`]: super::connection::PeerRole::is_stranger

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::Rank;

/// Time in which a connecting process must authenticate.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(10);

/// Most unauthenticated connections; each costs a few bytes of memory and a file descriptor.
pub(super) const STRANGERS_MAX: usize = 1024;

/// Pause after a failed accept: a file may be closed meanwhile, and the backlog holds the
/// connections.
const PAUSE: Duration = Duration::from_millis(100);

/// A rank's listening socket.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: TcpListener,
    /// The id that the listener's events carry.
    event: u64,
    is_watched: bool,
    /// Connections in the order in which they were accepted, with the time by which each must
    /// authenticate. Some have done so, or are closed.
    waiting: VecDeque<(u64, u64)>,
    strangers: usize,
    shut_until_ns: u64,
    has_complained: bool,
    /// Connections closed because they did not authenticate.
    pub refused: u64,
}

impl Acceptor {
    /// Wraps a listener that epoll does not watch yet.
    pub fn new(listener: TcpListener, event: u64) -> Self {
        Self {
            listener,
            event,
            is_watched: false,
            waiting: VecDeque::new(),
            strangers: 0,
            shut_until_ns: 0,
            has_complained: false,
            refused: 0,
        }
    }

    /// Watches the listener if a connection may be accepted now; stops watching otherwise.
    pub fn watch(&mut self, epoll: &OwnedFd, now_ns: u64) -> Result<(), rustix::io::Errno> {
        let is_open = self.strangers < STRANGERS_MAX && now_ns >= self.shut_until_ns;
        if is_open && !self.is_watched {
            epoll::add(epoll, &self.listener, EventData::new_u64(self.event), EventFlags::IN)?;
        } else if self.is_watched && !is_open {
            epoll::delete(epoll, &self.listener)?;
        }
        self.is_watched = is_open;
        Ok(())
    }

    /// Time until [`Acceptor::watch`] is due again; [`Duration::MAX`] if it is not paused.
    pub fn wait(&self, now_ns: u64) -> Duration {
        match self.shut_until_ns.saturating_sub(now_ns) {
            0 => Duration::MAX,
            left_ns => Duration::from_nanos(left_ns),
        }
    }

    /// Accepts the next connection, unless too many are unauthenticated.
    pub fn accept(&mut self, me: Rank, now_ns: u64) -> Option<TcpStream> {
        while self.strangers < STRANGERS_MAX {
            match self.listener.accept() {
                Ok((socket, _)) => return Some(socket),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    // The peer gave up.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    _ => {
                        self.shut(me, &error, now_ns);
                        break;
                    }
                },
            }
        }
        None
    }

    fn shut(&mut self, me: Rank, error: &io::Error, now_ns: u64) {
        self.shut_until_ns = now_ns + PAUSE.as_nanos() as u64;
        if !std::mem::replace(&mut self.has_complained, true) {
            eprintln!(
                "{me}: cannot accept connections of other ranks for now: {error}; they wait. If \
                 too many files are open, raise their number (ulimit -n)"
            );
        }
    }

    /// Counts connection `id` as unauthenticated.
    pub fn let_in(&mut self, id: u64, now_ns: u64) {
        self.strangers += 1;
        self.waiting.push_back((now_ns + HELLO_WAIT.as_nanos() as u64, id));
    }

    /// Counts one unauthenticated connection less: it has authenticated or is closed.
    pub fn release_stranger(&mut self) {
        self.strangers -= 1;
    }

    /// Connections that are still unauthenticated past their deadline.
    pub fn silent(&mut self, now_ns: u64, is_stranger: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut silent = Vec::new();
        while let Some((deadline_ns, id)) = self.waiting.front().copied() {
            let is_stranger = is_stranger(id);
            if is_stranger && now_ns < deadline_ns {
                break;
            }
            self.waiting.pop_front();
            silent.extend(is_stranger.then_some(id));
        }
        silent
    }
}

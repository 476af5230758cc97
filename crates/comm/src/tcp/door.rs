//! Door: where others connect, and those who did but have not proved who they are.
//!
//! Only so many strangers are let in at a time. Further ones are not turned away, since most of them
//! are ranks of a large job that begin all at once: the door is shut until some have said who they
//! are, or were silent for too long, and they wait with the kernel. It is shut for a while, too, when
//! this process may open no more files: the kernel would tell of who waits again and again.
//! Invariant: `strangers` counts the connections of which [`Role::is_stranger`] holds.
//!
//! [`Role::is_stranger`]: super::connection::Role::is_stranger

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::Rank;

/// A process that connects has to prove who it is within this time.
pub(super) const HELLO_WAIT: Duration = Duration::from_secs(10);

/// Connections of which it is not known who opened them: a few bytes of memory and an open file
/// each.
pub(super) const STRANGERS_MAX: usize = 1024;

/// How long the door is shut when a connection could not be accepted: a file may be closed
/// meanwhile, and who waits is patient.
const PAUSE: Duration = Duration::from_millis(100);

/// A rank's listening socket.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    /// The number that its events carry.
    event: u64,
    is_watched: bool,
    /// Connections in the order in which they were let in, and until when each has to say who it
    /// is. Some have, or are closed.
    waiting: VecDeque<(u64, u64)>,
    strangers: usize,
    shut_until_ns: u64,
    has_complained: bool,
    /// Strangers who were turned away.
    pub refused: u64,
}

impl Door {
    /// A door that the kernel does not watch yet.
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

    /// Has the kernel tell of who knocks, if somebody may come in now.
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

    /// How long one may wait before [`Door::watch`] is due.
    pub fn wait(&self, now_ns: u64) -> Duration {
        match self.shut_until_ns.saturating_sub(now_ns) {
            0 => Duration::MAX,
            left_ns => Duration::from_nanos(left_ns),
        }
    }

    /// The next who knocks, if the door is open.
    pub fn accept(&mut self, me: Rank, now_ns: u64) -> Option<TcpStream> {
        while self.strangers < STRANGERS_MAX {
            match self.listener.accept() {
                Ok((socket, _)) => return Some(socket),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    // That one gave up.
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

    /// Connection `id` is of a stranger.
    pub fn let_in(&mut self, id: u64, now_ns: u64) {
        self.strangers += 1;
        self.waiting.push_back((now_ns + HELLO_WAIT.as_nanos() as u64, id));
    }

    /// A stranger is one no more, or is gone.
    pub fn note_gone(&mut self) {
        self.strangers -= 1;
    }

    /// Connections of those who are strangers still, and were silent for too long.
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

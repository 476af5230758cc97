// SPDX-License-Identifier: Apache-2.0
//! Connection: the requests of a client under way, and their answers.
//!
//! A request stays pending until its answer has arrived. When the connection breaks, or its server
//! ends, the client connects to the server whose address the store then has and sends all pending
//! requests again, in order; the server carries out only those that no server has carried out.
//! Invariant: sending never blocks on a server that itself waits for the client to receive answers.

mod reconnect;
mod wait_notice;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::store::SharedStore;
use esker_base::wire::WireInput;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::stack::identity::Identity;
use rustix::event::PollFlags;

use self::reconnect::open_directories;
pub use self::wait_notice::WaitNotice;
use super::answer::Answer;
use super::answered_changes::AnsweredChanges;
use super::endpoint::{ClientIdentity, Endpoint};
use super::live_dir::LiveDir;
use super::pending::{PendingRequest, Request};
use super::waiting_socket::{SocketState, WaitingSocket};
use crate::proof::UserSecret;
use crate::server_address::ServerAddress;
use crate::wire::{FRAME_BYTES_MAX, FrameHeader, PATH_BYTES_MAX, Verb, split_frame, take_status};

/// Bytes of requests that are gathered before they are sent.
const SEND_BYTES: usize = 64 << 10;
/// Minimum number of requests that are gathered before they are sent, also as a share of those
/// under way: the server has work while the client takes the answers to earlier ones.
const GATHERED_MIN: usize = 8;
const GATHERED_SHARE: usize = 4;
/// Bytes received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// Requests under way, at most.
const WINDOW_MAX: u64 = 4096;
/// Longest time for which a client tries to reach a server: servers remember clients for longer.
pub(crate) const PATIENCE_MAX: Duration = Duration::from_secs(300);

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct LiveClientOptions {
    /// The user for whom the client acts over TCP; over a Unix socket the kernel names it.
    pub identity: Identity,
    /// The user's secret, for servers on other machines.
    pub secret: Option<UserSecret>,
    /// Time for which the client tries to reach a server before requests fail.
    pub patience: Duration,
    /// Told what the client waits for, once it has waited for some seconds.
    pub notice: Option<WaitNotice>,
}

impl Default for LiveClientOptions {
    /// This process's user, the secret in its default place, and a patience of half a minute.
    fn default() -> Self {
        let secret = UserSecret::default_path().and_then(|path| UserSecret::read(&path).ok());
        let patience = Duration::from_secs(30);
        Self { identity: Identity::of_process(), secret, patience, notice: None }
    }
}

/// A client's connection to the server that writes a live namespace, whichever process that is.
/// Each thread opens its own connection.
#[derive(Debug)]
pub struct LiveConnection {
    store: SharedStore,
    name: String,
    seat: u16,
    /// True if the namespace has no other seat.
    is_alone: bool,
    who: ClientIdentity,
    patience: Duration,
    notice: Option<WaitNotice>,
    /// True once the notice was given, until an answer arrives.
    is_noticed: bool,
    endpoint: Option<Arc<Endpoint>>,
    /// The server, as its address names it.
    instance: String,
    next_number: u64,
    pending: VecDeque<PendingRequest>,
    /// Bytes to send; those before `sent` are sent already.
    send: Vec<u8>,
    sent: usize,
    /// Requests submitted since bytes were last sent.
    gathered: usize,
    received: Vec<u8>,
    /// Receives bytes before they are appended to `received`.
    piece: Box<[u8]>,
    /// Answers that `wait` has not returned yet, or the reason that a request failed.
    answers: BTreeMap<u64, Result<Answer>>,
    /// Requests whose answers nobody waits for.
    dropped: BTreeSet<u64>,
    reconnects: u64,
    /// Time at which the last answer arrived, or the first request without one was submitted.
    heard_ns: u64,
    /// True after requests failed because no server could be reached: each later one tries once.
    is_unserved: bool,
    /// Time at which the connection broke, until an answer arrives.
    broke_ns: Option<u64>,
    changes: AnsweredChanges,
    /// The next pause before an attempt to connect, while connections break before any answer.
    pause: Option<Duration>,
    /// True after the client has connected, until an answer arrives.
    awaits_first_answer: bool,
}

impl LiveConnection {
    /// Connects to the server of `seat` of the live namespace `name` in `store`. Cost: three store
    /// requests and two round trips.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if no server can be reached for as long as the options say;
    /// `Denied` if it does not accept this user.
    pub fn connect(
        store: &SharedStore,
        (name, seat): (&str, u16),
        options: LiveClientOptions,
    ) -> Result<Self> {
        let live = LiveNamespace::load(&**store, name)?;
        let (set, is_alone) = (live.seat(seat)?, live.seats.len() == 1);
        let LiveClientOptions { identity, secret, patience, notice } = options;
        let client = Random::from_system().next_u64();
        let mut connection = Self {
            store: store.clone(),
            name: name.to_owned(),
            seat,
            is_alone,
            who: ClientIdentity { client, set, secret, identity },
            patience: patience.min(PATIENCE_MAX),
            notice,
            is_noticed: false,
            endpoint: None,
            instance: String::new(),
            next_number: 1,
            pending: VecDeque::new(),
            send: Vec::new(),
            sent: 0,
            gathered: 0,
            received: Vec::new(),
            piece: vec![0; RECEIVE_BYTES].into(),
            answers: BTreeMap::new(),
            dropped: BTreeSet::new(),
            reconnects: 0,
            heard_ns: SystemClock.monotonic_ns(),
            is_unserved: false,
            broke_ns: None,
            changes: AnsweredChanges::default(),
            pause: None,
            awaits_first_answer: false,
        };
        connection.reconnect(None)?;
        connection.reconnects = 0;
        Ok(connection)
    }

    /// The seat whose server it is connected to.
    #[must_use]
    pub fn seat(&self) -> u16 {
        self.seat
    }

    /// Number of times that the client has connected again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Puts `request` under way. Returns its number for [`LiveConnection::wait`]. The request is
    /// sent once enough are gathered, or when the caller waits.
    ///
    /// # Errors
    /// The request is then not under way. `Invalid` if it is for another seat
    /// ([`LiveTree::connection_to`](super::LiveTree::connection_to)); `TooLarge` if its size, or that of a name or path, is
    /// more than any server accepts; `Unavailable` and `Denied` if too many requests are under way
    /// and no server can be reached for them.
    pub fn submit(&mut self, request: Request) -> Result<u64> {
        request.check()?;
        if request.seat() != self.seat {
            let (of, own) = (request.seat(), self.seat);
            let what = format!("a request for seat {of} on a connection to seat {own}");
            return Err(Error::new(Kind::Invalid, what));
        }
        while self.next_number - self.oldest() >= WINDOW_MAX {
            self.receive_some()?;
        }
        if self.pending.is_empty() && !self.is_unserved {
            self.heard_ns = SystemClock.monotonic_ns();
        }
        let number = self.next_number;
        self.next_number += 1;
        let pending = PendingRequest::new(number, request, SystemClock.monotonic_ns());
        let answered_below = self.pending.front().map_or(number, |oldest| oldest.number);
        pending.put(&mut self.send, answered_below);
        self.pending.push_back(pending);
        self.gathered += 1;
        // The request has a number now, so `wait` reports a failure.
        let _ = self.send_gathered();
        Ok(number)
    }

    /// Sends the gathered requests if there are enough.
    fn send_gathered(&mut self) -> Result<()> {
        if self.send.len() >= SEND_BYTES {
            self.send_all()
        } else if self.is_share_gathered() {
            self.send_now()
        } else {
            Ok(())
        }
    }

    /// Returns the answer to request `number` once it has arrived.
    ///
    /// # Errors
    /// `Unavailable` if no server can be reached; `Fenced` if a directory of the request is not at
    /// its path any more.
    ///
    /// # Panics
    /// If the request was not submitted, or was waited for before.
    pub fn wait(&mut self, number: u64) -> Result<Answer> {
        loop {
            if let Some(answer) = self.answers.remove(&number) {
                return answer;
            }
            assert!(number >= self.oldest() && number < self.next_number, "no such request");
            if let Err(error) = self.receive_some()
                && !self.answers.contains_key(&number)
            {
                return Err(error);
            }
        }
    }

    /// Like [`LiveConnection::wait`], for as long as `patience`, also if a server is connected and
    /// does not answer. After that the connection is of no use.
    ///
    /// # Errors
    /// `Unavailable` without an answer, in which case the outer result fails; as
    /// [`LiveConnection::wait`].
    #[cfg(feature = "server")]
    pub(crate) fn wait_within(
        &mut self,
        number: u64,
        patience: Duration,
    ) -> Result<Result<Answer>> {
        let clock = SystemClock;
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = clock.monotonic_ns().saturating_add(patience_ns);
        while !self.has_answer(number) {
            if clock.monotonic_ns() >= deadline_ns {
                let what = format!("a server of {} does not answer", self.name);
                return Err(Error::new(Kind::Unavailable, what));
            }
            if let Err(error) = self.exchange()
                && !self.has_answer(number)
            {
                return Err(error);
            }
        }
        Ok(self.answers.remove(&number).expect("it has arrived"))
    }

    /// Returns the answer to request `number` if it has arrived, without waiting for it or connecting
    /// again.
    ///
    /// # Errors
    /// If the connection broke.
    #[cfg(feature = "server")]
    pub(crate) fn poll(&mut self, number: u64) -> Result<Option<Result<Answer>>> {
        if !self.has_answer(number) {
            if self.endpoint.is_none() {
                return Err(Error::new(Kind::Unavailable, "not connected"));
            }
            self.exchange_now()?;
        }
        Ok(self.answers.remove(&number))
    }

    /// Sends `request` and returns its answer.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn call(&mut self, request: Request) -> Result<Answer> {
        let number = self.submit(request)?;
        self.wait(number)
    }

    /// Returns the state of the server and its counters, as JSON. Cost: a round trip.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn status(&mut self) -> Result<serde_json::Value> {
        self.call(Request::status().for_seat(self.seat))?.status()
    }

    /// The changes that were answered, and the server that answers.
    pub(super) fn changes(&mut self) -> &mut AnsweredChanges {
        &mut self.changes
    }

    /// Takes the answer to request `number`, if it has arrived.
    pub(super) fn take_answer(&mut self, number: u64) -> Option<Result<Answer>> {
        self.answers.remove(&number)
    }

    /// Drops the answer to request `number`, whenever it arrives.
    pub(super) fn drop_answer(&mut self, number: u64) {
        if self.answers.remove(&number).is_none() {
            self.dropped.insert(number);
        }
    }

    /// True if answers that are dropped have not arrived.
    pub(super) fn awaits_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    fn put_answer(&mut self, number: u64, answer: Result<Answer>) {
        if !self.dropped.remove(&number) {
            self.answers.insert(number, answer);
        }
    }

    /// True if the answer to request `number` has arrived.
    pub(super) fn has_answer(&self, number: u64) -> bool {
        self.answers.contains_key(&number)
    }

    /// Sends what is gathered, as far as the socket takes it. A failure shows when answers are
    /// received.
    pub(super) fn send_gathered_now(&mut self) {
        if self.sent < self.send.len() {
            let _ = self.send_now();
        }
    }

    /// The socket, for a thread that waits for answers while others submit requests.
    pub(super) fn socket(&self) -> WaitingSocket {
        WaitingSocket::new(self.endpoint.clone(), self.wanted())
    }

    /// Sends and receives what the socket allows, after a thread has waited for it.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub(super) fn receive_ready(&mut self, ready: SocketState) -> Result<()> {
        match self.exchange_ready(ready) {
            Err(error) if may_reconnect(&error) => self.reconnect(Some(error)),
            exchanged => exchanged,
        }
    }

    fn oldest(&self) -> u64 {
        self.pending.front().map_or(self.next_number, |oldest| oldest.number)
    }

    fn is_share_gathered(&self) -> bool {
        self.gathered >= GATHERED_MIN && self.gathered * GATHERED_SHARE >= self.pending.len()
    }

    /// Sends as many bytes as the socket takes without blocking.
    fn send_now(&mut self) -> Result<()> {
        match self.write_some() {
            Err(error) if may_reconnect(&error) => self.reconnect(Some(error)),
            written => written,
        }
    }

    fn send_all(&mut self) -> Result<()> {
        while self.sent < self.send.len() {
            self.exchange()?;
        }
        Ok(())
    }

    /// Sends all gathered bytes, and returns once some answer has arrived.
    fn receive_some(&mut self) -> Result<()> {
        let before = self.answers.len();
        while self.answers.len() == before && !self.pending.is_empty() {
            self.exchange()?;
        }
        Ok(())
    }

    /// The events of the socket that the connection waits for.
    fn wanted(&self) -> PollFlags {
        if self.sent < self.send.len() { PollFlags::OUT | PollFlags::IN } else { PollFlags::IN }
    }

    /// Waits for the socket, and sends and receives as much as it allows. Connects again if it
    /// broke.
    fn exchange(&mut self) -> Result<()> {
        let ready = self.socket().wait();
        self.receive_ready(ready)
    }

    fn exchange_ready(&mut self, ready: SocketState) -> Result<()> {
        match ready {
            SocketState::Silent => {
                self.give_notice(wait_notice::Waiting::ForAnswer);
                self.check_server()
            }
            SocketState::Ready => self.exchange_now(),
            SocketState::Broken(error) => Err(error),
        }
    }

    /// Sends and receives as much as the socket allows without waiting.
    fn exchange_now(&mut self) -> Result<()> {
        if self.sent < self.send.len() {
            self.write_some()?;
        }
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        match (&**endpoint).read(&mut self.piece) {
            Ok(0) => Err(Error::new(Kind::Unavailable, "the server has gone")),
            Ok(count) => {
                self.received.extend_from_slice(&self.piece[..count]);
                self.take_answers()
            }
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(closed(&error)),
        }
    }

    fn write_some(&mut self) -> Result<()> {
        let Some(endpoint) = &self.endpoint else {
            return Err(Error::new(Kind::Unavailable, "not connected"));
        };
        self.gathered = 0;
        match (&**endpoint).write(&self.send[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(closed(&error)),
        }
        if self.sent == self.send.len() {
            self.send.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// Fails if another server has taken over from the silent one, which may be stopped or cut off.
    fn check_server(&self) -> Result<()> {
        let newest = ServerAddress::all(&*self.store, (&self.name, self.seat))?.into_iter().next();
        match newest {
            Some(newest) if newest.instance != self.instance => {
                let what = format!("the server on {} has taken over", newest.host);
                Err(Error::new(Kind::Unavailable, what))
            }
            _ => Ok(()),
        }
    }

    /// Takes the complete answers out of the received bytes.
    fn take_answers(&mut self) -> Result<()> {
        let mut at = 0;
        let mut lacking = Vec::new();
        while let Some((header, payload)) =
            split_frame(&self.received[at..], FRAME_BYTES_MAX, "an answer of a server")?
        {
            let bytes = self.received[at..][payload.clone()].to_vec();
            at += payload.end;
            if header.verb == Verb::Goodbye && header.number != 0 {
                self.take_refusal(header.number, &bytes);
                continue;
            }
            let index = self.pending.binary_search_by_key(&header.number, |request| request.number);
            let Ok(index) = index else {
                // A directory that was opened again, or the repetition of an answer.
                continue;
            };
            if header.verb != self.pending[index].verb() {
                return Err(Error::corrupt("an answer of a server", 4, "another verb"));
            }
            if header.flags.lacks_directory {
                lacking.push((header.number, header.flags.follows_lack));
                continue;
            }
            let request = self.pending.remove(index).expect("found");
            self.pause = None;
            self.awaits_first_answer = false;
            self.broke_ns = None;
            self.is_noticed = false;
            self.heard_ns = SystemClock.monotonic_ns();
            let is_durable = request.is_durable() && header.flags.is_durable;
            let answer = Answer::new(header, bytes);
            let answer = self.changes.count(&request, is_durable).map(|()| answer);
            self.put_answer(header.number, answer);
        }
        self.received.drain(..at);
        for (number, follows) in lacking {
            self.repeat_with_directories(number, follows);
        }
        Ok(())
    }

    /// Takes the server's refusal of request `number`, after which it closes the connection. The
    /// end of this client is answered alike.
    fn take_refusal(&mut self, number: u64, payload: &[u8]) {
        let mut input = WireInput::new(payload);
        let why = match take_status(&mut input) {
            Ok(Err(why)) => Err(why),
            Ok(Ok(())) => {
                Ok(Answer::new(FrameHeader::new(Verb::Goodbye, number), payload.to_vec()))
            }
            Err(damage) => Err(damage.of("an answer of a server", 0)),
        };
        if let Ok(index) = self.pending.binary_search_by_key(&number, |request| request.number) {
            self.pending.remove(index);
            self.put_answer(number, why);
        }
    }

    /// Asks the server to open the directories of request `number`, and sends the request again.
    /// The repetition does not count if the request only `follows` one that lacks a directory.
    fn repeat_with_directories(&mut self, number: u64, follows: bool) {
        let answered_below = self.oldest();
        let index = self.pending.binary_search_by_key(&number, |request| request.number);
        // A server may say so twice.
        let Ok(index) = index else { return };
        let request = &mut self.pending[index];
        if !follows && request.count_repeat() > REPEATS_MAX {
            let error = Error::new(Kind::Fenced, why_lacking(request.dirs()));
            self.pending.retain(|request| request.number != number);
            self.put_answer(number, Err(error));
            return;
        }
        open_directories(request.dirs(), &mut self.send);
        request.put(&mut self.send, answered_below);
    }

    /// Ends the client: the server forgets its requests. Waits for those that are pending.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn close(mut self) -> Result<()> {
        while !self.pending.is_empty() {
            self.receive_some()?;
        }
        self.call(Request::goodbye().for_seat(self.seat)).map(drop)
    }

    /// Ends the client without waiting for anything. A server that does not hear it forgets its
    /// requests later.
    pub fn leave(mut self) {
        if self.submit(Request::goodbye().for_seat(self.seat)).is_ok() {
            let _ = self.write_some();
        }
    }
}

/// Bytes that an error shows of a path which is too long.
const SHOWN_BYTES: usize = 64;

/// Repetitions of a request whose directories the server does not have open, at most.
const REPEATS_MAX: u32 = 3;

/// The reason that a server does not open `dirs`.
fn why_lacking(dirs: &[LiveDir]) -> String {
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    if let Some(deep) = dirs.iter().find(|dir| dir.place.path.len() >= PATH_BYTES_MAX) {
        return format!(
            "{}…: the path is too long for its server to open the directory again; look up its names \
             one after another",
            shown(&deep.path[..deep.path.len().min(SHOWN_BYTES)])
        );
    }
    let paths: Vec<_> = dirs.iter().map(|dir| shown(&dir.path)).collect();
    format!("{}: moved or removed; open it again", paths.join(", "))
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn closed(error: &std::io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("the connection broke: {error}"))
}

fn may_reconnect(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Corrupt)
}

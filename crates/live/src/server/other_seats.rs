// SPDX-License-Identifier: Apache-2.0
//! Other seats: the servers of the other seats of a live namespace, as clients see them.
//!
//! A server asks them to make and remove directories whose names it has, to give files names that they
//! have, and for their parts of snapshots. It never does so while it carries out changes, so two servers do not wait for each
//! other.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_fs::inode::DirId;
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::stack::identity::Identity;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::task::block_in_place;

use super::done_moves::DoneMoves;
use super::moving_files::MovingFiles;
use super::seat_placement::SeatPlacement;
use crate::client::{Answer, LiveClientOptions, LiveConnection, Request};
use crate::proof::UserSecret;

/// Time for which a server tries to reach another one. Its client waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which a server asks another one how many entries it has.
const ENTRIES_PATIENCE: Duration = Duration::from_millis(300);
/// Connections of one kind to a seat, at most.
const CONNECTIONS_MAX: usize = 8;
/// Connections of one kind to a seat that are kept while they are not used: a namespace may have 256 seats.
const KEPT_CONNECTIONS: usize = 2;
/// Connections that wait for other seats at once, at most, and those of one user: each takes a
/// thread.
const WAITING_MAX: usize = 128;
const USER_WAITING_MAX: usize = 64;

/// The seats of a live namespace, from the server of one of them.
#[derive(Debug)]
pub(super) struct OtherSeats {
    store: SharedStore,
    name: String,
    own: u16,
    /// The secret of the server's user, and a file that may have it.
    secret: (Option<UserSecret>, Option<PathBuf>),
    /// Connections by seat for changes, which may wait for the end of a snapshot.
    changes: Vec<SeatConnections>,
    /// Connections for the steps of moves of files, none of which waits for the end of a snapshot.
    moves: Vec<SeatConnections>,
    /// Connections for snapshots. What one holds up ends with it.
    snapshots: Vec<SeatConnections>,
    /// Connections for questions, which wait for less long.
    questions: Vec<SeatConnections>,
    placement: SeatPlacement,
    moving: MovingFiles,
    done_moves: DoneMoves,
    /// Directories at other seats that are being removed.
    closing: Mutex<HashSet<DirId>>,
    /// Parts of spread directories at this seat in which no name is made, and until when.
    closed_parts: Mutex<HashMap<DirId, u64>>,
    /// Spread directories whose removal failed, and some of whose parts may be closed or missing.
    unkept: Mutex<BTreeSet<DirId>>,
    /// Held while a snapshot is taken: its parts are held up by one connection.
    snapshot: Mutex<()>,
    /// Connections that wait for other seats, by user.
    waiting: Mutex<HashMap<u32, usize>>,
    /// Directories at other seats whose names were made here, and when, by the monotonic clock, until
    /// the names are synced.
    unsynced_names: Mutex<HashMap<DirId, u64>>,
}

/// A connection that may wait for other seats.
pub(super) struct SeatWait<'a> {
    seats: &'a OtherSeats,
    uid: u32,
}

impl Drop for SeatWait<'_> {
    fn drop(&mut self) {
        let mut waiting = self.seats.waiting.lock();
        if let Some(of_user) = waiting.get_mut(&self.uid) {
            *of_user -= 1;
            if *of_user == 0 {
                waiting.remove(&self.uid);
            }
        }
    }
}

/// Connections to a seat, made when they are needed.
#[derive(Debug, Default)]
struct SeatConnections {
    unused: Mutex<UnusedConnections>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct UnusedConnections {
    connections: Vec<LiveConnection>,
    /// Number of those in use.
    used: usize,
}

/// A use of one of the connections to a seat.
struct ConnectionUse<'a>(&'a SeatConnections);

impl SeatConnections {
    /// Takes a connection, or `None` for the use of a new one, once fewer than [`CONNECTIONS_MAX`] are in
    /// use; nothing if that takes longer than `patience`.
    fn take(&self, patience: Duration) -> Option<(ConnectionUse<'_>, Option<LiveConnection>)> {
        let mut unused = self.unused.lock();
        let is_full = |unused: &mut UnusedConnections| unused.used >= CONNECTIONS_MAX;
        if self.returned.wait_while_for(&mut unused, is_full, patience).timed_out() {
            return None;
        }
        unused.used += 1;
        Some((ConnectionUse(self), unused.connections.pop()))
    }
}

impl ConnectionUse<'_> {
    /// Keeps the connection for later uses, unless there are enough.
    fn keep(self, connection: LiveConnection) {
        let mut unused = self.0.unused.lock();
        if unused.connections.len() < KEPT_CONNECTIONS {
            unused.connections.push(connection);
            return;
        }
        drop(unused);
        connection.leave();
    }
}

impl Drop for ConnectionUse<'_> {
    fn drop(&mut self) {
        self.0.unused.lock().used -= 1;
        self.0.returned.notify_one();
    }
}

/// A request to another seat that has no answer, and why.
pub(super) enum UnansweredCall {
    /// It was not sent.
    NotSent(Error),
    /// It was sent, and may have an answer yet.
    UnderWay(Error, CallUnderWay),
    /// Whether it was carried out stays unknown.
    Lost(Error),
}

/// A request to another seat whose answer is awaited.
#[derive(Debug)]
pub(super) struct CallUnderWay {
    connection: Box<LiveConnection>,
    number: u64,
}

impl CallUnderWay {
    /// Returns the answer if it has arrived.
    ///
    /// # Errors
    /// If it never comes.
    pub fn poll(&mut self) -> Result<Option<Answer>> {
        self.connection.poll(self.number)?.transpose()
    }
}

impl OtherSeats {
    /// The seats of the live namespace `name`, which has `seats`, from the server of `own`, whose user
    /// has `secret`, or has it in a file.
    pub fn new(
        store: SharedStore,
        name: &str,
        (own, seats): (u16, usize),
        (secret, done_moves): ((Option<UserSecret>, Option<PathBuf>), DoneMoves),
    ) -> Self {
        let connections = || (0..seats).map(|_| SeatConnections::default()).collect();
        Self {
            store,
            name: name.to_owned(),
            own,
            secret,
            changes: connections(),
            moves: connections(),
            snapshots: connections(),
            questions: connections(),
            done_moves,
            placement: SeatPlacement::new(own, seats),
            moving: MovingFiles::default(),
            closing: Mutex::default(),
            closed_parts: Mutex::default(),
            unkept: Mutex::default(),
            snapshot: Mutex::default(),
            waiting: Mutex::default(),
            unsynced_names: Mutex::default(),
        }
    }

    /// Admits a connection of `uid` that may wait for other seats; `None` while too many do: servers
    /// that had no thread left could not answer each other.
    pub fn admit_waiting(&self, uid: u32) -> Option<SeatWait<'_>> {
        let mut waiting = self.waiting.lock();
        let all: usize = waiting.values().sum();
        let of_user = waiting.get(&uid).copied().unwrap_or(0);
        if all >= WAITING_MAX || of_user >= USER_WAITING_MAX {
            return None;
        }
        waiting.insert(uid, of_user + 1);
        Some(SeatWait { seats: self, uid })
    }

    /// Records that the name of the directory `id` at another seat is being made.
    pub fn begin_name(&self, id: DirId) {
        self.unsynced_names.lock().insert(id, u64::MAX);
    }

    /// Records that the name was made at `made_ns`, or was not. Forgets those that are synced.
    pub fn end_name(&self, id: DirId, made_ns: Option<u64>, is_synced: impl Fn(u64) -> bool) {
        let mut unsynced = self.unsynced_names.lock();
        unsynced.remove(&id);
        unsynced.retain(|_, made_ns| !is_synced(*made_ns));
        unsynced.extend(made_ns.map(|made_ns| (id, made_ns)));
    }

    /// Returns when the name of the directory `id` at another seat was made, if that may not be synced.
    pub fn unsynced_name(&self, id: DirId) -> Option<u64> {
        self.unsynced_names.lock().get(&id).copied()
    }

    /// Begins a snapshot; it lasts until the guard is dropped.
    ///
    /// # Errors
    /// `Conflict` while another one is taken.
    pub fn begin_snapshot(&self) -> Result<MutexGuard<'_, ()>> {
        self.snapshot.try_lock().ok_or_else(|| {
            let what = "another snapshot of the namespace is being taken; try again";
            Error::new(Kind::Conflict, what)
        })
    }

    /// As [`LiveNamespace::claim_adopted`], for this seat.
    ///
    /// # Errors
    /// As there.
    pub fn claim_adopted(&self, identity: DirId) -> Result<()> {
        LiveNamespace::claim_adopted(&*self.store, &self.name, (identity, self.own))
    }

    /// Files that are being moved from this seat, and files of other seats that lost names here.
    pub fn moving(&self) -> &MovingFiles {
        &self.moving
    }

    /// The requests of clients of other seats for which this seat has named files.
    pub fn done_moves(&self) -> &DoneMoves {
        &self.done_moves
    }

    /// True if there are any.
    pub fn has_others(&self) -> bool {
        self.changes.len() > 1
    }

    /// The numbers of all other seats.
    pub fn numbers(&self) -> impl Iterator<Item = u16> {
        let seats = u16::try_from(self.changes.len()).expect("at most SEATS_MAX");
        (0..seats).filter(|seat| *seat != self.own)
    }

    /// True if the directory `id` at another seat is being removed.
    pub fn is_closing(&self, id: DirId) -> bool {
        self.closing.lock().contains(&id)
    }

    /// Begins the removal of the directory `id` at another seat; false if one is under way.
    pub fn begin_closing(&self, id: DirId) -> bool {
        self.closing.lock().insert(id)
    }

    /// Ends the removal of `id`.
    pub fn end_closing(&self, id: DirId) {
        self.closing.lock().remove(&id);
    }

    /// Lets no name be made in this seat's part of the directory `id` for `time`.
    pub fn close_part(&self, id: DirId, time: Duration, clock: &dyn Clock) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = clock.monotonic_ns();
        let mut closed = self.closed_parts.lock();
        closed.retain(|_, until_ns| *until_ns > now_ns);
        closed.insert(id, now_ns.saturating_add(time_ns));
    }

    /// Lets names be made again in this seat's part of the directory `id`.
    pub fn open_part(&self, id: DirId) {
        self.closed_parts.lock().remove(&id);
    }

    /// True if no name may be made in this seat's part of the directory `id`.
    pub fn is_part_closed(&self, id: DirId, clock: &dyn Clock) -> bool {
        let until_ns = self.closed_parts.lock().get(&id).copied();
        until_ns.is_some_and(|until_ns| until_ns > clock.monotonic_ns())
    }

    /// Records that parts of the directory `id`, whose removal failed, may be closed or missing.
    pub fn record_unkept(&self, id: DirId) {
        self.unkept.lock().insert(id);
    }

    /// Takes the directories that were recorded.
    pub fn take_unkept(&self) -> BTreeSet<DirId> {
        std::mem::take(&mut self.unkept.lock())
    }

    /// An identity for a directory that is spread over all seats, which nobody can guess.
    pub fn random_spread_id(&self) -> DirId {
        let seats = u16::try_from(self.changes.len()).expect("at most SEATS_MAX");
        DirId::spread(seats, Random::from_system().next_u64())
    }

    /// Chooses the seat of a new directory. `own_entries` are those of this seat.
    pub fn choose(&self, own_entries: u64, clock: &dyn Clock) -> u16 {
        let ask = |seat| if seat == self.own { Some(own_entries) } else { self.entries_of(seat) };
        self.placement.choose(&mut Random::from_system(), clock, ask)
    }

    /// Records that the server of `seat` does not answer: for some seconds no directory goes there.
    pub fn set_unanswering(&self, seat: u16, clock: &dyn Clock) {
        self.placement.set_unanswering(seat, clock);
    }

    /// Sends `requests` to the server of `seat`, and returns the answer to each, in order: an error
    /// for each that has none after some seconds. Whether that was carried out is unknown.
    pub fn call(&self, seat: u16, requests: Vec<Request>) -> Vec<Result<Answer>> {
        self.call_by((&self.changes, PATIENCE), seat, requests)
    }

    /// Like [`OtherSeats::call`], for requests that hold up changes, or take a part of a snapshot.
    ///
    /// # Errors
    /// The first one.
    pub fn call_for_snapshot(&self, seat: u16, requests: Vec<Request>) -> Result<Vec<Answer>> {
        self.call_by((&self.snapshots, PATIENCE), seat, requests).into_iter().collect()
    }

    /// Sends `request`, a step of the move of a file, to the server of `seat`, and returns its answer.
    ///
    /// # Errors
    /// Without an answer after some seconds.
    pub fn call_to_end(&self, seat: u16, request: Request) -> Result<Answer, UnansweredCall> {
        let begun = || {
            let (used, mut connection) = self.connection(&self.moves, seat, PATIENCE)?;
            // A server that is gone shows before the request is sent.
            let null = connection.submit(Request::null().for_seat(seat))?;
            connection.wait_within(null, PATIENCE)??;
            let number = connection.submit(request.for_seat(seat))?;
            Ok((used, connection, number))
        };
        let (used, mut connection, number) = begun().map_err(UnansweredCall::NotSent)?;
        match connection.wait_within(number, PATIENCE) {
            Ok(Ok(answer)) => {
                used.keep(connection);
                Ok(answer)
            }
            Ok(Err(error)) => Err(UnansweredCall::Lost(error)),
            Err(error) => {
                let connection = Box::new(connection);
                Err(UnansweredCall::UnderWay(error, CallUnderWay { connection, number }))
            }
        }
    }

    /// Like [`OtherSeats::call`], for other steps of moves.
    pub fn call_for_move(&self, seat: u16, requests: Vec<Request>) -> Vec<Result<Answer>> {
        self.call_by((&self.moves, PATIENCE), seat, requests)
    }

    fn call_by(
        &self,
        connections: (&[SeatConnections], Duration),
        seat: u16,
        requests: Vec<Request>,
    ) -> Vec<Result<Answer>> {
        let count = requests.len();
        let mut answers = Vec::with_capacity(count);
        let failed = match self.send(connections, seat, requests, &mut answers) {
            Ok(()) => return answers,
            Err(failed) => failed,
        };
        let failure = || Err(Error::new(failed.kind(), failed.to_string()));
        answers.resize_with(count, failure);
        answers
    }

    fn send(
        &self,
        (connections, patience): (&[SeatConnections], Duration),
        seat: u16,
        requests: Vec<Request>,
        answers: &mut Vec<Result<Answer>>,
    ) -> Result<()> {
        let (used, mut connection) = self.connection(connections, seat, patience)?;
        let mut numbers = Vec::with_capacity(requests.len());
        for request in requests {
            numbers.push(connection.submit(request.for_seat(seat))?);
        }
        for number in numbers {
            answers.push(connection.wait_within(number, patience)?);
        }
        used.keep(connection);
        Ok(())
    }

    /// A connection to the server of `seat`. One whose request fails stays out of use.
    fn connection<'a>(
        &self,
        connections: &'a [SeatConnections],
        seat: u16,
        patience: Duration,
    ) -> Result<(ConnectionUse<'a>, LiveConnection)> {
        let to_seat = connections.get(usize::from(seat)).filter(|_| seat != self.own);
        let to_seat = to_seat.ok_or_else(|| {
            Error::new(Kind::Corrupt, format!("a directory at seat {seat} of {}", self.name))
        })?;
        let (used, unused) = to_seat.take(patience).ok_or_else(|| {
            let what = format!("the server of seat {seat} of {} does not answer", self.name);
            Error::new(Kind::Unavailable, what)
        })?;
        match unused {
            Some(connection) => Ok((used, connection)),
            None => Ok((used, self.connect(seat, patience)?)),
        }
    }

    fn connect(&self, seat: u16, patience: Duration) -> Result<LiveConnection> {
        let (secret, file) = &self.secret;
        // As other clients do: servers of this machine do not ask for it.
        let in_file = file.as_ref().and_then(|file| UserSecret::read(file).ok());
        let options = LiveClientOptions {
            identity: Identity::of_process(),
            secret: in_file.or_else(|| secret.clone()),
            patience,
            notice: None,
        };
        LiveConnection::connect(&self.store, (&self.name, seat), options)
    }

    fn entries_of(&self, seat: u16) -> Option<u64> {
        let by = (&self.questions[..], ENTRIES_PATIENCE);
        let ask = || self.call_by(by, seat, vec![Request::status()]).pop();
        // The request must not hold up other connections.
        let answer = block_in_place(ask)?.ok()?;
        answer.status().ok()?["session"]["entries"].as_u64()
    }
}

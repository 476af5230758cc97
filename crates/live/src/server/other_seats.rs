// SPDX-License-Identifier: Apache-2.0
//! Other seats: the servers of the other seats of a live namespace, as clients see them.
//!
//! A server asks them to make and remove directories whose names it has, and for their parts of
//! snapshots. It never does so while it carries out changes, so two servers do not wait for each
//! other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_fs::inode::DirId;
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::stack::identity::Identity;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::Value;
use tokio::task::block_in_place;

use super::seat_placement::SeatPlacement;
use crate::client::{Answer, LiveClientOptions, LiveConnection, Request};
use crate::proof::UserSecret;

/// Time for which a server tries to reach another one. Its client waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that wait for other seats at once, at most.
const WAITING_MAX: usize = 128;
/// Maximum bytes of the state of a server.
const STATUS_BYTES_MAX: usize = 1 << 20;

/// The seats of a live namespace, from the server of one of them.
#[derive(Debug)]
pub(super) struct OtherSeats {
    store: SharedStore,
    name: String,
    own: u16,
    secret: Option<UserSecret>,
    changes: Vec<SeatConnection>,
    /// Other connections, since a change may wait for the end of a snapshot.
    snapshots: Vec<SeatConnection>,
    placement: SeatPlacement,
    /// Directories at other seats that are being removed.
    closing: Mutex<HashSet<DirId>>,
    /// Notified when one of these has ended.
    closed: Condvar,
    /// Parts of spread directories at this seat in which no name is made, and until when.
    closed_parts: Mutex<HashMap<DirId, u64>>,
    /// Held while a snapshot is taken: its parts are held up by one connection.
    snapshot: Mutex<()>,
    /// Connections that wait for other seats.
    waiting: AtomicUsize,
}

/// The connection to a seat, made when it is first needed.
type SeatConnection = Mutex<Option<LiveConnection>>;

impl OtherSeats {
    /// The seats of the live namespace `name`, which has `seats`, from the server of `own`.
    pub fn new(
        store: SharedStore,
        name: &str,
        (own, seats): (u16, usize),
        secret: Option<UserSecret>,
    ) -> Self {
        Self {
            store,
            name: name.to_owned(),
            own,
            secret,
            changes: (0..seats).map(|_| Mutex::default()).collect(),
            snapshots: (0..seats).map(|_| Mutex::default()).collect(),
            placement: SeatPlacement::new(own, seats),
            closing: Mutex::default(),
            closed: Condvar::new(),
            closed_parts: Mutex::default(),
            snapshot: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Runs `act`, which waits for other seats, unless too many connections do already: each of them
    /// takes a thread, and servers that had none left could not answer each other.
    pub fn wait_for<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let done = (before < WAITING_MAX).then(act);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        done
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
        self.closed.notify_all();
    }

    /// Waits until the removal of `id` has ended; false if that takes too long.
    pub fn wait_closed(&self, id: DirId) -> bool {
        let mut closing = self.closing.lock();
        while closing.contains(&id) {
            if self.closed.wait_for(&mut closing, PATIENCE).timed_out() {
                return false;
            }
        }
        true
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
        self.call_by(&self.changes, seat, requests)
    }

    /// Like [`OtherSeats::call`], for requests that hold up changes, or take a part of a snapshot.
    ///
    /// # Errors
    /// The first one.
    pub fn call_for_snapshot(&self, seat: u16, requests: Vec<Request>) -> Result<Vec<Answer>> {
        self.call_by(&self.snapshots, seat, requests).into_iter().collect()
    }

    fn call_by(
        &self,
        connections: &[SeatConnection],
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
        connections: &[SeatConnection],
        seat: u16,
        requests: Vec<Request>,
        answers: &mut Vec<Result<Answer>>,
    ) -> Result<()> {
        let silent = || {
            let what = format!("the server of seat {seat} of {} does not answer", self.name);
            Error::new(Kind::Unavailable, what)
        };
        let place = connections.get(usize::from(seat)).filter(|_| seat != self.own);
        let place = place.ok_or_else(|| {
            Error::new(Kind::Corrupt, format!("a directory at seat {seat} of {}", self.name))
        })?;
        let mut place = place.try_lock_for(PATIENCE).ok_or_else(silent)?;
        // One that fails stays out of use.
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => self.connect(seat)?,
        };
        let mut numbers = Vec::with_capacity(requests.len());
        for request in requests {
            numbers.push(connection.submit(request.for_seat(seat))?);
        }
        for number in numbers {
            answers.push(connection.wait_within(number, PATIENCE)?);
        }
        *place = Some(connection);
        Ok(())
    }

    fn connect(&self, seat: u16) -> Result<LiveConnection> {
        let options = LiveClientOptions {
            identity: Identity::of_process(),
            secret: self.secret.clone(),
            patience: PATIENCE,
        };
        LiveConnection::connect(&self.store, (&self.name, seat), options)
    }

    fn entries_of(&self, seat: u16) -> Option<u64> {
        // The request must not hold up other connections.
        let ask = || self.call(seat, vec![Request::status()]).pop();
        let answer = block_in_place(|| self.wait_for(ask)).flatten()?.ok()?;
        let text = answer.only(|input| Ok(input.bytes(STATUS_BYTES_MAX, "a status")?.to_vec()));
        let status: Value = serde_json::from_slice(&text.ok()?).ok()?;
        status["session"]["entries"].as_u64()
    }
}

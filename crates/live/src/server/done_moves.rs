// SPDX-License-Identifier: Apache-2.0
//! Done moves: the requests for which this seat has named files of other seats, so that a rename which is
//! repeated to the next server of the old name is carried out once.
//!
//! The server of the old name says for which request of which client it asks. The record of the client's
//! requests is part of the change that makes the name, so that a crash keeps both or neither. It is kept as
//! those of the seat's own clients are, under a number of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use esker_base::wire::{WireInput, put_varint};
use esker_base::{Clock, Result};
use esker_fs::session::request_record::RequestRecord;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::wire::MoveRequest;

/// Version of the content of a record; those of the seat's own clients have lower ones.
pub(super) const VERSION: u8 = 3;
/// Distinguishes the number of a client in these records.
const SALT: u64 = 0x6d6f_7665_735f_646f;
/// Time for which a client is remembered: longer than it repeats a request.
const MEMORY: Duration = Duration::from_secs(600);
/// Requests of one client that are remembered, at most: as many as it may have under way.
const REQUESTS_MAX: usize = 1024;

/// The requests of all clients for which this seat has named files.
#[derive(Debug, Default)]
pub(super) struct DoneMoves(Mutex<HashMap<u64, DoneRequests>>);

#[derive(Debug, Default)]
struct DoneRequests {
    /// The places at their seats of the files that were named ([`SeatFile::device`]), by request.
    places: BTreeMap<u64, u64>,
    /// The last time at which one was added, by the monotonic clock.
    added_ns: u64,
}

impl DoneMoves {
    /// Adds the requests in `record`, of an earlier server; false if it is another kind of record.
    ///
    /// # Errors
    /// `Corrupt` for a record that no server wrote.
    pub fn read(&self, record: &RequestRecord, clock: &dyn Clock) -> Result<bool> {
        if record.content.first() != Some(&VERSION) {
            return Ok(false);
        }
        let mut input = WireInput::new(&record.content[1..]);
        let mut requests = DoneRequests { added_ns: clock.monotonic_ns(), ..Default::default() };
        while input.left() > 0 {
            let mut next = || input.varint().map_err(|damage| damage.of("a record of moves", 1));
            requests.places.insert(next()?, next()?);
        }
        self.0.lock().insert(record.client ^ SALT, requests);
        Ok(true)
    }

    /// Returns the place of the file that request `number` of `client` has named, if it was carried out.
    pub fn named_place(&self, client: u64, number: u64) -> Option<u64> {
        self.0.lock().get(&client)?.places.get(&number).copied()
    }

    /// Returns the record of the client of `request` with that one, which names the file at `place`.
    pub fn record_with(&self, request: MoveRequest, place: u64) -> RequestRecord {
        let MoveRequest { client, number, answered_below } = request;
        let mut content = vec![VERSION];
        let clients = self.0.lock();
        let known = clients.get(&client).map(|requests| &requests.places);
        let earlier = known.into_iter().flat_map(|places| places.range(answered_below..));
        let mut places: BTreeMap<u64, u64> =
            earlier.map(|(number, place)| (*number, *place)).collect();
        places.insert(number, place);
        while places.len() > REQUESTS_MAX {
            places.pop_first();
        }
        for field in places.iter().flat_map(|(number, place)| [*number, *place]) {
            put_varint(&mut content, field);
        }
        RequestRecord { client: client ^ SALT, content }
    }

    /// Records that `request` has named the file at `place`. Returns the clients whose records are not
    /// needed any more.
    pub fn add(&self, request: MoveRequest, place: u64, clock: &dyn Clock) -> Vec<u64> {
        let MoveRequest { client, number, answered_below } = request;
        let now_ns = clock.monotonic_ns();
        let mut clients = self.0.lock();
        let requests = clients.entry(client).or_default();
        requests.places = requests.places.split_off(&answered_below);
        requests.places.insert(number, place);
        requests.added_ns = now_ns;
        let is_old = |requests: &DoneRequests| {
            u128::from(now_ns.saturating_sub(requests.added_ns)) > MEMORY.as_nanos()
        };
        let forgotten = clients.extract_if(|_, requests| is_old(requests));
        forgotten.map(|(client, _)| client ^ SALT).collect()
    }
}

#[cfg(test)]
mod tests {
    use esker_base::clock::SystemClock;

    use super::*;

    #[test]
    fn the_next_server_knows_what_was_done() -> Result<()> {
        let (done, next) = (DoneMoves::default(), DoneMoves::default());
        let request = |number, answered_below| MoveRequest { client: 7, number, answered_below };
        done.add(request(3, 1), 33, &SystemClock);
        done.add(request(5, 1), 55, &SystemClock);
        let places = |done: &DoneMoves| [3, 4, 5, 9].map(|number| done.named_place(7, number));
        assert_eq!(places(&done), [Some(33), None, Some(55), None]);
        assert_eq!(done.named_place(8, 3), None);
        let record = done.record_with(request(9, 4), 99);
        assert!(next.read(&record, &SystemClock)?);
        assert_eq!(places(&next), [None, None, Some(55), Some(99)]);
        done.add(request(9, 4), 99, &SystemClock);
        assert_eq!(places(&done), [None, None, Some(55), Some(99)]);
        let other = RequestRecord { client: 7, content: vec![2, 1] };
        assert!(!next.read(&other, &SystemClock)?);
        let cut = RequestRecord { client: 7, content: vec![VERSION, 0x80] };
        assert!(next.read(&cut, &SystemClock).is_err());
        Ok(())
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Done moves: the requests for which this seat has named files of other seats, so that a rename which is
//! repeated to the next server of the old name is carried out once.
//!
//! The server of the old name says for which request of which client it asks. The record of the client's
//! requests is part of the change that makes the name, so that a crash keeps both or neither. It is kept as
//! those of the seat's own clients are, under a number of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_base::{Clock, Error, Kind, Result};
use esker_fs::inode::SeatFile;
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
const REQUESTS_MAX: usize = 512;

/// Time between two looks for clients to forget.
const FORGET_INTERVAL_NS: u64 = 1_000_000_000;

/// The requests of all clients for which this seat has named files.
#[derive(Debug, Default)]
pub(super) struct DoneMoves(Mutex<MovingClients>);

#[derive(Debug, Default)]
struct MovingClients {
    requests: HashMap<u64, DoneRequests>,
    /// The last look for clients to forget, by the monotonic clock.
    looked_ns: u64,
}

#[derive(Debug, Default)]
struct DoneRequests {
    /// The files that were named, by request.
    files: BTreeMap<u64, SeatFile>,
    /// The client has all answers below this number: an older request that arrives now is late.
    answered_below: u64,
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
        let requests = take_requests(&mut WireInput::new(&record.content[1..]), clock);
        let requests = requests.map_err(|damage| damage.of("a record of moves", 1))?;
        self.0.lock().requests.insert(record.client ^ SALT, requests);
        Ok(true)
    }

    /// Returns the file that `request` has named, if it was carried out.
    ///
    /// # Errors
    /// `Conflict` for a request that is older than those that its client repeats.
    pub fn named_file(&self, request: MoveRequest) -> Result<Option<SeatFile>> {
        let clients = self.0.lock();
        let Some(requests) = clients.requests.get(&request.client) else { return Ok(None) };
        if request.number < requests.answered_below {
            return Err(Error::new(Kind::Conflict, "the request comes too late"));
        }
        Ok(requests.files.get(&request.number).copied())
    }

    /// Returns the record of the client of `request` with that one, which names `file`.
    pub fn record_with(&self, request: MoveRequest, file: SeatFile) -> RequestRecord {
        let MoveRequest { client, number, answered_below } = request;
        let mut content = vec![VERSION];
        put_varint(&mut content, answered_below);
        let clients = self.0.lock();
        let known = clients.requests.get(&client).map(|requests| &requests.files);
        let earlier = known.into_iter().flat_map(|files| files.range(answered_below..));
        let mut files: BTreeMap<u64, SeatFile> =
            earlier.map(|(number, file)| (*number, *file)).collect();
        files.insert(number, file);
        while files.len() > REQUESTS_MAX {
            files.pop_first();
        }
        for (number, file) in &files {
            put_varint(&mut content, *number);
            content.extend_from_slice(&file.id.to_le_bytes());
            put_varint(&mut content, file.device());
        }
        RequestRecord { client: client ^ SALT, content }
    }

    /// Records that `request` has named `file`. Returns the clients whose records are not needed any more.
    pub fn add(&self, request: MoveRequest, file: SeatFile, clock: &dyn Clock) -> Vec<u64> {
        let MoveRequest { client, number, answered_below } = request;
        let now_ns = clock.monotonic_ns();
        let mut clients = self.0.lock();
        let requests = clients.requests.entry(client).or_default();
        requests.answered_below = requests.answered_below.max(answered_below);
        requests.files = requests.files.split_off(&answered_below);
        requests.files.insert(number, file);
        requests.added_ns = now_ns;
        if now_ns.saturating_sub(clients.looked_ns) < FORGET_INTERVAL_NS {
            return Vec::new();
        }
        clients.looked_ns = now_ns;
        let is_old = |requests: &DoneRequests| {
            u128::from(now_ns.saturating_sub(requests.added_ns)) > MEMORY.as_nanos()
        };
        let forgotten = clients.requests.extract_if(|_, requests| is_old(requests));
        forgotten.map(|(client, _)| client ^ SALT).collect()
    }
}

fn take_requests(input: &mut WireInput, clock: &dyn Clock) -> Result<DoneRequests, WireDamage> {
    let (answered_below, mut files) = (input.varint()?, BTreeMap::new());
    while input.left() > 0 {
        let (number, id, device) = (input.varint()?, input.u128()?, input.varint()?);
        let file = SeatFile::of_device(id, device).ok_or_else(|| input.damage("a seat"))?;
        files.insert(number, file);
    }
    Ok(DoneRequests { files, answered_below, added_ns: clock.monotonic_ns() })
}

#[cfg(test)]
mod tests {
    use esker_base::clock::SystemClock;

    use super::*;

    #[test]
    fn the_next_server_knows_what_was_done() -> Result<()> {
        let (done, next) = (DoneMoves::default(), DoneMoves::default());
        let request = |number, answered_below| MoveRequest { client: 7, number, answered_below };
        let file = |number: u64| SeatFile::new(1, number.into(), number << 32);
        done.add(request(3, 1), file(3), &SystemClock);
        done.add(request(5, 1), file(5), &SystemClock);
        let named = |done: &DoneMoves, number| done.named_file(request(number, 1)).ok();
        assert_eq!(named(&done, 3), Some(Some(file(3))));
        assert_eq!((named(&done, 4), named(&done, 5)), (Some(None), Some(Some(file(5)))));
        let other = MoveRequest { client: 8, ..request(3, 1) };
        assert_eq!(done.named_file(other)?, None);
        let record = done.record_with(request(9, 4), file(9));
        assert!(next.read(&record, &SystemClock)?);
        done.add(request(9, 4), file(9), &SystemClock);
        for done in [&done, &next] {
            // The client would not repeat it: it is late.
            assert_eq!((named(done, 3), named(done, 4)), (None, Some(None)));
            assert_eq!(
                (named(done, 5), named(done, 9)),
                (Some(Some(file(5))), Some(Some(file(9))))
            );
        }
        let other = RequestRecord { client: 7, content: vec![2, 1] };
        assert!(!next.read(&other, &SystemClock)?);
        let cut = RequestRecord { client: 7, content: vec![VERSION, 0x80] };
        assert!(next.read(&cut, &SystemClock).is_err());
        Ok(())
    }
}

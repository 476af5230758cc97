// SPDX-License-Identifier: Apache-2.0
//! Done moves: the requests for which this seat has named files of other seats, so that a rename which is
//! repeated to the next server of the old name is carried out once.
//!
//! The server of the old name says for which request of which client it asks. The record of the client's
//! requests is part of the change that makes the name, so that a crash keeps both or neither. It is kept as
//! those of the seat's own clients are, under a number of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use esker_base::wire::{WireInput, put_varint};
use esker_base::{Clock, Result};
use esker_fs::session::request_record::RequestRecord;
use hashbrown::HashMap;
use parking_lot::Mutex;

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
    numbers: BTreeSet<u64>,
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
            let number = input.varint();
            requests.numbers.insert(number.map_err(|damage| damage.of("a record of moves", 1))?);
        }
        self.0.lock().insert(record.client ^ SALT, requests);
        Ok(true)
    }

    /// True if request `number` of `client` was carried out.
    pub fn has(&self, client: u64, number: u64) -> bool {
        self.0.lock().get(&client).is_some_and(|requests| requests.numbers.contains(&number))
    }

    /// Returns the record of `client` with request `number`, without those below `answered_below`.
    pub fn record_with(&self, client: u64, number: u64, answered_below: u64) -> RequestRecord {
        let mut content = vec![VERSION];
        let clients = self.0.lock();
        let known = clients.get(&client).map(|requests| &requests.numbers);
        let earlier = known.into_iter().flatten().copied().filter(|done| *done >= answered_below);
        let mut numbers: BTreeSet<u64> = earlier.collect();
        numbers.insert(number);
        while numbers.len() > REQUESTS_MAX {
            numbers.pop_first();
        }
        numbers.iter().for_each(|number| put_varint(&mut content, *number));
        RequestRecord { client: client ^ SALT, content }
    }

    /// Records that request `number` of `client` was carried out. Returns the clients whose records are
    /// not needed any more.
    pub fn add(
        &self,
        client: u64,
        (number, answered_below): (u64, u64),
        clock: &dyn Clock,
    ) -> Vec<u64> {
        let now_ns = clock.monotonic_ns();
        let mut clients = self.0.lock();
        let requests = clients.entry(client).or_default();
        requests.numbers = requests.numbers.split_off(&answered_below);
        requests.numbers.insert(number);
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
        done.add(7, (3, 1), &SystemClock);
        done.add(7, (5, 1), &SystemClock);
        assert!(done.has(7, 3) && !done.has(7, 4) && !done.has(8, 3));
        let record = done.record_with(7, 9, 4);
        assert!(next.read(&record, &SystemClock)?);
        assert!(!next.has(7, 3) && next.has(7, 5) && next.has(7, 9));
        done.add(7, (9, 4), &SystemClock);
        assert!(!done.has(7, 3) && done.has(7, 5) && done.has(7, 9));
        let other = RequestRecord { client: 7, content: vec![2, 1] };
        assert!(!next.read(&other, &SystemClock)?);
        let cut = RequestRecord { client: 7, content: vec![VERSION, 0x80] };
        assert!(next.read(&cut, &SystemClock).is_err());
        Ok(())
    }
}

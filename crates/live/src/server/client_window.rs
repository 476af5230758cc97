// SPDX-License-Identifier: Apache-2.0
//! Client window: the requests of one client whose answers it may not have yet, so that a change is
//! carried out once even if its request arrives several times.
//!
//! A client numbers its requests and repeats all unanswered ones, in order, on each new connection.
//! While the server lives, the window has their answers. After a crash, the next server has the
//! client's record (`esker_fs::session::request_record`), which each change carried: the position
//! of the last item that was carried out, and those of earlier items that failed. An item that failed
//! may be carried out when it is repeated, since its client never had an answer. Invariant: items are
//! carried out in the order of their requests, so everything up to the last one was carried out, or
//! failed.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_base::{Error, Kind, Result};
use esker_fs::session::request_record::{REQUEST_RECORD_BYTES_MAX, RequestRecord};

/// Version of the content of a record. Records of version 1 have no nonce.
const VERSION: u8 = 2;

/// Requests that a client may have under way.
pub(super) const WINDOW_MAX: u32 = 8192;
/// Bytes of answers that are kept for a client; beyond that the client must first acknowledge some
/// of them.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Bytes of a record without failures, and those of each failure.
const RECORD_BYTES_MAX: usize = 40;
const FAILURE_BYTES_MAX: usize = 12;

/// Position of an item: its request, and its place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ItemPosition {
    /// Number of the request.
    pub number: u64,
    /// Place in the request.
    pub item: u16,
}

/// The part of a client's window that its server records.
#[derive(Clone, Debug)]
pub(super) struct RequestProgress {
    client: u64,
    /// The user of the client: another cannot continue its requests.
    uid: u32,
    /// A random number of this registration: what a client that reuses a number makes is not what its
    /// predecessor made.
    nonce: u64,
    /// The client has all answers below this number.
    answered_below: u64,
    /// The position after the last item that was carried out or failed.
    end: ItemPosition,
    /// Items before `end`, of requests the client may repeat, that failed.
    failed: BTreeSet<ItemPosition>,
}

/// The requests of one client.
#[derive(Debug)]
pub(super) struct ClientWindow {
    progress: RequestProgress,
    /// True if a record has the nonce.
    is_recorded: bool,
    /// Answers to changes that the client may not have, by the number of the request.
    answers: BTreeMap<u64, Vec<u8>>,
    answer_bytes: usize,
}

impl ClientWindow {
    /// The window of a new client of the user `uid`, with a random `nonce`.
    pub fn new(client: u64, uid: u32, nonce: u64) -> Self {
        let (end, failed) = (ItemPosition::default(), BTreeSet::new());
        let progress = RequestProgress { client, uid, nonce, answered_below: 1, end, failed };
        Self { progress, is_recorded: false, answers: BTreeMap::new(), answer_bytes: 0 }
    }

    /// Returns the recorded part of the window.
    pub fn progress(&self) -> &RequestProgress {
        &self.progress
    }

    /// The client has all answers below this number.
    pub fn answered_below(&self) -> u64 {
        self.progress.answered_below
    }

    /// The user of the client.
    pub fn uid(&self) -> u32 {
        self.progress.uid
    }

    /// The random number of the registration.
    pub fn nonce(&self) -> u64 {
        self.progress.nonce
    }

    /// True if a record has the nonce. One must precede the client's first change.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Records that [`ClientWindow::record`] was put.
    pub fn set_recorded(&mut self) {
        self.is_recorded = true;
    }

    /// The window that an earlier server recorded.
    ///
    /// # Errors
    /// `Corrupt` for a record that no server wrote.
    pub fn of_record(record: &RequestRecord) -> Result<Self> {
        let window = Self::take(record.client, &mut WireInput::new(&record.content));
        window.map_err(|damage| damage.of(&format!("requests of client {:016x}", record.client), 0))
    }

    fn take(client: u64, input: &mut WireInput) -> Result<Self, WireDamage> {
        let version = input.u8()?;
        if !(1..=VERSION).contains(&version) {
            return Err(input.damage("version 1 or 2 of a record of requests"));
        }
        let uid = input.u32()?;
        let nonce = if version == 1 { 0 } else { input.u64()? };
        let answered_below = input.varint()?;
        let end = ItemPosition { number: input.varint()?, item: input.u16()? };
        let mut failed = BTreeSet::new();
        while input.left() > 0 {
            failed.insert(ItemPosition { number: input.varint()?, item: input.u16()? });
        }
        let progress = RequestProgress { client, uid, nonce, answered_below, end, failed };
        Ok(Self { progress, is_recorded: true, answers: BTreeMap::new(), answer_bytes: 0 })
    }

    /// Returns the record of the window.
    pub fn record(&self) -> RequestRecord {
        self.progress.record()
    }

    /// Forgets answers below `number`, which the client has.
    ///
    /// # Errors
    /// `Invalid` if the client had said that it has fewer.
    pub fn has_answers_below(&mut self, number: u64) -> Result<()> {
        let progress = &mut self.progress;
        if number < progress.answered_below {
            let what = format!(
                "request {number} arrives after the answers below {} did",
                progress.answered_below
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        progress.answered_below = number;
        progress.failed = progress.failed.split_off(&ItemPosition { number, item: 0 });
        while let Some(oldest) = self.answers.first_entry().filter(|oldest| *oldest.key() < number)
        {
            self.answer_bytes -= oldest.remove().len();
        }
        Ok(())
    }

    /// Returns the answer to request `number`, if this server has given it.
    pub fn answer(&self, number: u64) -> Option<&[u8]> {
        self.answers.get(&number).map(Vec::as_slice)
    }

    /// Keeps the answer to request `number` until the client has it.
    pub fn keep_answer(&mut self, number: u64, answer: &[u8]) {
        let before = self.answers.insert(number, answer.to_vec());
        self.answer_bytes += answer.len() - before.map_or(0, |before| before.len());
    }

    /// True if the item at `position` was carried out.
    pub fn is_done(&self, position: ItemPosition) -> bool {
        position < self.progress.end && !self.progress.failed.contains(&position)
    }

    /// True if there is no room for the failures of request `number` of `items` in a record, or for
    /// its answer.
    pub fn is_full(&self, number: u64, items: u16) -> bool {
        let own = ItemPosition { number, item: 0 }..=ItemPosition { number, item: u16::MAX };
        let failed = &self.progress.failed;
        let others = failed.len() - failed.range(own).count();
        let failures = others + usize::from(items);
        failures * FAILURE_BYTES_MAX + RECORD_BYTES_MAX > REQUEST_RECORD_BYTES_MAX
            || self.answer_bytes > ANSWER_BYTES_MAX
    }

    /// Records whether the item at `position` was carried out or failed.
    pub fn finish(&mut self, position: ItemPosition, is_done: bool) {
        self.progress.finish(position, is_done);
    }
}

impl RequestProgress {
    fn finish(&mut self, position: ItemPosition, is_done: bool) {
        self.end = self.end.max(after(position));
        match is_done {
            true => self.failed.remove(&position),
            false => self.failed.insert(position),
        };
    }

    /// The record.
    pub fn record(&self) -> RequestRecord {
        let mut content = vec![VERSION];
        content.extend_from_slice(&self.uid.to_le_bytes());
        content.extend_from_slice(&self.nonce.to_le_bytes());
        put_varint(&mut content, self.answered_below);
        put_varint(&mut content, self.end.number);
        content.extend_from_slice(&self.end.item.to_le_bytes());
        for ItemPosition { number, item } in &self.failed {
            put_varint(&mut content, *number);
            content.extend_from_slice(&item.to_le_bytes());
        }
        RequestRecord { client: self.client, content }
    }

    /// The record that also counts the items from `first` to the one numbered `last` as done.
    pub fn record_with(&self, first: ItemPosition, last: Option<u16>) -> RequestRecord {
        let mut progress = self.clone();
        for item in last.into_iter().flat_map(|last| first.item..=last) {
            progress.finish(ItemPosition { item, ..first }, true);
        }
        progress.record()
    }
}

/// The position after that of an item.
fn after(position: ItemPosition) -> ItemPosition {
    ItemPosition { item: position.item + 1, ..position }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64, item: u16) -> ItemPosition {
        ItemPosition { number, item }
    }

    #[test]
    fn a_record_tells_the_next_server_what_was_done() {
        let mut window = ClientWindow::new(7, 1000, 99);
        let outcomes = [(at(1, 0), true), (at(3, 0), true), (at(3, 1), false), (at(3, 2), true)];
        for (position, is_done) in outcomes {
            window.finish(position, is_done);
        }
        let mut next = ClientWindow::of_record(&window.record()).expect("a record");
        assert_eq!((next.uid(), next.nonce()), (1000, 99));
        assert!(!window.is_recorded() && next.is_recorded());
        let done = [at(1, 0), at(2, 5), at(3, 0), at(3, 2)];
        let not_done = [at(3, 1), at(3, 3), at(4, 0)];
        assert!(done.into_iter().all(|position| next.is_done(position)));
        assert!(!not_done.into_iter().any(|position| next.is_done(position)));
        // Repeated, the item that failed succeeds.
        next.finish(at(3, 1), true);
        assert!(next.is_done(at(3, 1)) && next.progress.end == at(3, 3));
        next.has_answers_below(4).expect("in order");
        assert_eq!(next.has_answers_below(3).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn answers_stay_until_the_client_has_them() {
        let mut window = ClientWindow::new(7, 1000, 99);
        window.keep_answer(2, b"two");
        window.keep_answer(5, b"five");
        assert_eq!((window.answer(2), window.answer(3)), (Some(&b"two"[..]), None));
        window.has_answers_below(5).expect("in order");
        assert_eq!((window.answer(2), window.answer(5)), (None, Some(&b"five"[..])));
    }

    #[test]
    fn a_full_window_says_so_and_its_record_fits() {
        let mut window = ClientWindow::new(u64::MAX, u32::MAX, u64::MAX);
        let mut number = u64::MAX >> 1;
        while !window.is_full(number, 1) {
            window.finish(at(number, u16::MAX - 1), false);
            number += 1;
        }
        let record = window.record();
        assert!(record.content.len() <= REQUEST_RECORD_BYTES_MAX);
        assert!(window.progress.failed.len() > 1000);
        for length in 0..28 {
            let content = record.content[..length].to_vec();
            let cut = ClientWindow::of_record(&RequestRecord { client: 1, content });
            assert!(cut.is_err() || length >= 25, "{length}");
        }
    }
}

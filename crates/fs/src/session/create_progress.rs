// SPDX-License-Identifier: Apache-2.0
//! Create progress: a record of requests that the log carries with creates.
//!
//! A create that carried the record of its request (`request_record`) would cost twice as much. A
//! server that carries out many creates tells the session instead which request it is in, and the
//! session counts its creates. Whenever the log is written or a memtable frozen meanwhile, the
//! record as of the last create is put too, so no create survives a crash without a record that
//! covers it, and no record covers a create that is lost. Tracking ends before a change that
//! carries a newer record: an older one must not follow it.
//!
//! Concurrency: one handle at a time tracks creates. A create is counted under the lock of the
//! tree's shard that has it, and the record is made under the locks of all shards, so it covers
//! exactly the creates before it.

use esker_base::Clock;
use esker_table::schema::Row;
use parking_lot::Mutex;

use super::request_record::{AttachedRecord, REQUEST_RECORD_BYTES_MAX, RequestRecord};
use crate::inode::timestamp;

/// Returns the record that counts all items up to the given one as done; `None` for those before.
pub type RecordOfItem = Box<dyn Fn(Option<u16>) -> RequestRecord + Send>;

#[derive(Default)]
pub(crate) struct CreateProgress {
    tracked: Mutex<Option<TrackedRequest>>,
}

struct TrackedRequest {
    record: RecordOfItem,
    /// The last item whose file was created.
    last: Option<u16>,
    /// True if the record could not be put for lack of room.
    is_owed: bool,
}

impl std::fmt::Debug for CreateProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateProgress").finish_non_exhaustive()
    }
}

impl CreateProgress {
    pub(crate) fn begin(&self, record: RecordOfItem) {
        *self.tracked.lock() = Some(TrackedRequest { record, last: None, is_owed: false });
    }

    /// Goes on with the record until it is put otherwise.
    pub(crate) fn owe(&self) {
        if let Some(request) = &mut *self.tracked.lock() {
            request.is_owed = true;
        }
    }

    /// Ends the tracking of a record that was owed, which has been put.
    pub(crate) fn end_owed(&self) {
        self.tracked.lock().take_if(|request| request.is_owed);
    }

    pub(crate) fn end(&self) {
        *self.tracked.lock() = None;
    }

    /// Counts the creation of `item`. The shard that has it is locked.
    pub(crate) fn created(&self, item: u16) {
        if let Some(request) = &mut *self.tracked.lock() {
            request.last = Some(item);
        }
    }

    /// Passes the record to `put`, if creates are tracked. All shards are locked.
    pub(crate) fn pass(&self, clock: &dyn Clock, put: &mut dyn FnMut(&Row)) {
        let tracked = self.tracked.lock();
        let Some(request) = &*tracked else { return };
        let record = (request.record)(request.last);
        assert!(record.content.len() <= REQUEST_RECORD_BYTES_MAX, "the server bounds its records");
        let attached = AttachedRecord::new(&record, timestamp::of_clock(clock.now_ns()));
        put(&attached.inode.row(&attached.key()));
    }
}

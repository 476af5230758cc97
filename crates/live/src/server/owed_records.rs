// SPDX-License-Identifier: Apache-2.0
//! Owed records: those of clients' requests for which there was no room when their changes were done.
//!
//! They are put before the next change of anybody and before the next sync, so that no change of another
//! client comes between a record and what it covers, and both become durable together. A crash just while
//! there is room again, after the log was written and before the record, still separates the two: the change
//! is then done again if its client had no answer.

use std::collections::BTreeMap;

use esker_base::Result;
use esker_fs::session::Session;
use esker_fs::session::request_record::RequestRecord;
use parking_lot::Mutex;

/// Records by client. Locked after the clients.
#[derive(Debug, Default)]
pub(super) struct OwedRecords(Mutex<BTreeMap<u64, RequestRecord>>);

impl OwedRecords {
    /// Adds a record, in place of an older one of the client.
    pub fn add(&self, record: RequestRecord) {
        self.0.lock().insert(record.client, record);
    }

    /// Forgets the record of `client`, which is not needed any more.
    pub fn forget(&self, client: u64) {
        self.0.lock().remove(&client);
    }

    /// Puts all records into `session`. Nobody puts a newer one of a client meanwhile.
    ///
    /// # Errors
    /// As [`Session::put_request`]; those that were not put stay.
    pub fn put(&self, session: &Session) -> Result<()> {
        let mut owed = self.0.lock();
        while let Some(record) = owed.first_entry() {
            session.put_request(record.get())?;
            record.remove();
        }
        Ok(())
    }
}

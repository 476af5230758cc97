// SPDX-License-Identifier: Apache-2.0
//! Records of the requests of clients: where each stands in the log beside the change that it is of.

use esker_base::Result;

use super::{ClientSession, check_goes_on};
use crate::server::client_window::{ClientWindow, ItemPosition};
use crate::wire::Verb;

impl ClientSession<'_> {
    /// Records the client, unless that was done: the next server must know it again.
    pub(super) fn record_registration(&self, window: &mut ClientWindow) -> Result<()> {
        if !window.is_recorded() {
            self.session.put_request(&window.record())?;
            window.set_recorded();
        }
        Ok(())
    }

    /// Makes the log carry a record with the files that are created from the item at `position` on.
    pub(super) fn track_creates(&self, window: &ClientWindow, position: ItemPosition) {
        let progress = window.progress().clone();
        let record = move |last| progress.record_with(position, last);
        self.session.track_creates(Box::new(record));
    }

    /// Puts the records of all clients that found no room.
    pub(super) fn put_owed_records(&self) -> Result<()> {
        self.served.commit().owed_records().put(&self.superuser)?;
        self.superuser.end_owed_tracking();
        Ok(())
    }

    /// Makes the log carry the record of what was done so far, after a change of attributes or content.
    pub(super) fn track_done(&self, verb: Verb, window: &ClientWindow) {
        if !is_tracked(verb) || verb == Verb::Create {
            return;
        }
        let record = window.record();
        self.session.track_creates(Box::new(move |_| record.clone()));
    }

    /// Puts the record of what was done so far; the log no longer carries it.
    pub(super) fn put_record(&self, window: &ClientWindow) -> Result<()> {
        let record = window.record();
        if let Err(error) = self.session.end_tracking(&record) {
            check_goes_on(&error)?;
            self.served.commit().owed_records().add(record);
        }
        Ok(())
    }
}

/// True if the log carries the record of changes of this kind.
pub(super) fn is_tracked(verb: Verb) -> bool {
    matches!(verb, Verb::Create | Verb::SetAttributes | Verb::Write | Verb::Allocate)
}

/// True if each change of this kind carries the record of its request, always. A record follows the
/// others at the end of their batch.
pub(super) fn carries_record(verb: Verb) -> bool {
    use Verb::{Allocate, Close, Create, LinkAcross, NameSeatFile, Open, SetAttributes, Write};
    let has_own = matches!(verb, Create | SetAttributes | Write | Allocate | Open | Close);
    !has_own && !matches!(verb, LinkAcross | NameSeatFile)
}

//! Deleting: takes names back and gives sets up; what nothing holds any more is collected (`gc`).

use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::set_writer::SetWriter;

use crate::marker::{self, Holder};
use crate::names;
use crate::repository::Repository;
use crate::session::SessionOptions;

/// Others that commit at the same time are met at most this often in a row.
const TRIES_MAX: usize = 8;

impl Repository {
    /// Takes the name back: nobody opens its change set by it any more, and the set goes with the
    /// next collection unless it has other names or others build on it. Durable once it returns.
    /// Cost: three requests.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the name cannot be read: then it is gone, and its set goes too.
    pub fn delete(&self, name: &str) -> Result<()> {
        let store = &**self.store();
        let named = match names::resolve(store, name) {
            Err(error) if error.kind() == Kind::Corrupt => {
                names::remove(store, name)?;
                return Err(error.within("removed a name that cannot be read"));
            }
            resolved => resolved?,
        };
        names::remove(store, name)?;
        marker::release(store, named.set, &Holder::Name(name.to_owned()))?;
        // Somebody may have published the set under the name again meanwhile.
        match names::resolve(store, name) {
            Ok(again) if again.set == named.set => {
                marker::hold(store, named.set, &Holder::Name(name.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Gives up a change set that somebody else began, or left: as [`Repository::abandon`], and it
    /// cannot be resumed any more. A writer that is still there is fenced first, so that nothing that
    /// it does brings the set back; on a full store it is fenced by the collection. Cost: a commit
    /// more. A set whose manifest cannot be read is given up all the same.
    ///
    /// # Errors
    /// `Conflict` if another process writes the set, unless `options` are to take it over;
    /// `NotFound`; what the store reports.
    pub fn give_up(&self, set: SetId, options: &SessionOptions) -> Result<()> {
        match self.fence(set, options) {
            Err(error) if [Kind::Corrupt, Kind::NoSpace].contains(&error.kind()) => {}
            fenced => fenced?,
        }
        self.abandon(set)
    }

    /// Lets others go on with a complete set that a command had begun for itself
    /// ([`SessionOptions::private`]): it stays if that command dies. Cost: a commit.
    ///
    /// # Errors
    /// `Conflict` if somebody else commits to it; what the store reports.
    pub fn keep_complete(&self, set: SetId) -> Result<()> {
        let mut manifest = Manifest::load(&**self.store(), set)?;
        manifest.epoch += 1;
        manifest.writer = manifest.writer.take().map(SetWriter::released);
        manifest.claim(&**self.store(), set, self.clock().now_ns())
    }

    /// Stops the writer of an open set by a commit of a higher epoch.
    fn fence(&self, set: SetId, options: &SessionOptions) -> Result<()> {
        let store = &**self.store();
        for _ in 0..TRIES_MAX {
            let mut manifest = Manifest::load(store, set)?;
            if manifest.state != SetState::Open {
                return Ok(());
            }
            self.check_not_held(set, &manifest, options)?;
            manifest.epoch += 1;
            manifest.writer = manifest.writer.take().map(SetWriter::released);
            match manifest.claim(store, set, self.clock().now_ns()) {
                Err(error) if matches!(error.kind(), Kind::Conflict | Kind::Fenced) => {}
                claimed => return claimed,
            }
        }
        Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
    }

    /// Gives up a change set that the caller began and will not publish, or completed and not named:
    /// it goes with the next collection. A writer that is still there stops with `Fenced` then.
    ///
    /// # Errors
    /// What the store reports.
    pub fn abandon(&self, set: SetId) -> Result<()> {
        marker::release(&**self.store(), set, &Holder::Session)
    }
}

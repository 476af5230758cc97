//! Deleting: takes names back and gives sets up; what nothing holds any more is collected (`gc`).

use esker_base::{Kind, Result};
use esker_table::manifest::SetId;

use crate::marker::{self, Holder};
use crate::names;
use crate::repository::Repository;

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

    /// Gives up a change set that was begun and will not be published, or completed and not named:
    /// it goes with the next collection. A writer that is still there stops with `Fenced` then.
    ///
    /// # Errors
    /// What the store reports.
    pub fn abandon(&self, set: SetId) -> Result<()> {
        marker::release(&**self.store(), set, &Holder::Session)
    }
}

//! Target: where an indexed directory is made, and the snapshot in which it is published.

use clap::Args;
use esker_base::{Random, Result};
use esker_fs::indexed;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_imd::directory::PartitionTotals;

use crate::change::{Change, SessionSettings};
use crate::context::Context;
use crate::location::Location;

/// The property of a change set that says where the directory will be that is written in it.
pub const TARGET: &str = "indexed directory";

/// Where a new directory goes.
#[derive(Args)]
pub struct Target {
    /// Where the directory is made
    #[arg(value_name = "NAME:/path", value_parser = Location::parser())]
    target: Location,
    /// Publish as NEWNAME, on top of the target's name
    #[arg(long = "as", value_name = "NEWNAME")]
    new_name: Option<String>,
}

/// A snapshot with a new directory.
pub struct Published {
    /// Its name.
    pub name: String,
    /// The id of its set.
    pub set: String,
}

impl Target {
    /// Begins a session, lets `write` fill the directory and [place](Target::place) it, publishes.
    /// Makes the store if there is none.
    pub fn publish<T>(
        &self,
        context: &Context,
        write: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<(T, Published)> {
        let repository = Repository::new(context.store_or_new()?);
        let new_name = self.new_name.as_deref();
        let (bases, published) =
            context.bases_and_name(&repository, &self.target.stack, new_name)?;
        let mut options = SessionSettings::for_few().options(context);
        let path = String::from_utf8_lossy(&self.target.path).into_owned();
        options.properties.insert(TARGET.to_owned(), path);
        let change = Change::begin(context, &bases, published, options)?;
        let set = change.session.set().to_string();
        let written = change.run_silently(write)?;
        Ok((written, Published { name: published.to_owned(), set }))
    }

    /// Gives the finished directory, whose partitions have `totals`, its name.
    pub fn place(&self, session: &Session, number: u64, totals: &PartitionTotals) -> Result<()> {
        let (dir, name) = session.locate(&self.target.path)?;
        let bytes = totals.data_bytes + totals.index_bytes;
        let size = bytes + totals.value_bytes + totals.auxiliary_bytes;
        session.create_indexed(&dir, name, 0o644, number, size).map(drop)
    }
}

/// A number for a new directory of this session, and what the names of its objects begin with.
pub fn place_of(session: &Session) -> (u64, String) {
    let number = Random::from_system().next_u64();
    (number, indexed::prefix(session.set(), number))
}

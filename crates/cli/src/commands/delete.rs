//! `esker delete`: takes published names back.

use clap::Args;
use esker_base::Result;

use crate::context::Context;
use crate::progress;

/// Take published names back
///
/// Snapshots that build on a deleted one stay whole. What nobody needs any more goes with the next
/// `esker gc`.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker delete headers-old && esker gc")]
pub struct Delete {
    /// Names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Delete {
    /// Deletes them.
    pub fn run(self, context: &Context) -> Result<()> {
        progress::watch_store(context, "delete:", |repository| {
            self.names.iter().try_for_each(|name| repository.delete(name))
        })
    }
}

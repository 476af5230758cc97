// SPDX-License-Identifier: Apache-2.0
//! `esker imd adopt`: makes an indexed directory that a program wrote outside a namespace an entry.

use clap::Args;
use esker_base::Result;
use serde_json::json;

use super::target::{DirectoryTarget, new_directory};
use crate::context::CommandContext;
use crate::text;

/// Adopt an indexed directory that a program wrote directly into the store
///
/// Programs may write indexed directories below any prefix of a store, outside every namespace,
/// where no command lists, verifies or collects them. A copy becomes the entry NAME:/path; the
/// original stays, and may be deleted. All ranks must have finished it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd adopt electrons/ run:/electrons
  esker imd adopt electrons/ run:/electrons --as run-2")]
pub struct ImdAdoptCommand {
    /// Prefix of its object names in the store
    #[arg(value_name = "PREFIX")]
    prefix: String,
    #[command(flatten)]
    target: DirectoryTarget,
}

impl ImdAdoptCommand {
    /// Adopts.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        // Only an existing store can hold it.
        context.store()?;
        let slash = if self.prefix.is_empty() || self.prefix.ends_with('/') { "" } else { "/" };
        let prefix = self.prefix.clone() + slash;
        let (bytes, published) = self.target.publish(context, |session| {
            let directory = new_directory(session);
            let bytes = directory.adopt(session, &prefix)?;
            self.target.publish_directory(context, session, directory)?;
            Ok(bytes)
        })?;
        let (name, set) = (published.name, published.set);
        if context.out.is_json() {
            return context.out.json(json!({"published": name, "set": set, "bytes": bytes}));
        }
        context.out.line(format!("copied {} from {prefix}, which stays", text::bytes(bytes)))?;
        context.out.line(format!("published {name} @{set}"))
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker umount` and `esker commit`: requests to a running mount.

use std::path::PathBuf;

use clap::Args;
use esker_base::Result;
use esker_fuse::{ControlRequest, ask};

use super::mount::request_text;
use crate::context::CommandContext;
use crate::session_outcome::SessionOutcome;

/// End a mount, and publish what was written in it
///
/// Waits until everything is published, and prints the published name; a part of a job is completed. Fails while the mount is in
/// use, or while the store has no room for what was written in it; the mount then goes on.
#[derive(Args)]
#[command(after_help = "Example:\n  esker umount /mnt")]
pub struct UmountCommand {
    /// The mount point
    mountpoint: PathBuf,
}

/// Publish the current state of a mount, and keep it mounted
///
/// The snapshot is of one moment during the call and includes everything written before the call.
/// At its end the mount is still published under its own name.
#[derive(Args)]
#[command(after_help = "Example:\n  esker commit /mnt build-1-compiled")]
pub struct CommitCommand {
    /// The mount point
    mountpoint: PathBuf,
    /// The name of the snapshot
    name: String,
}

impl UmountCommand {
    /// Ends it.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        print_publication(context, &ask(&self.mountpoint, &ControlRequest::End)?)
    }
}

impl CommitCommand {
    /// Publishes it.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        print_publication(context, &ask(&self.mountpoint, &ControlRequest::Commit(self.name))?)
    }
}

/// Prints what became of the session, if there was one.
fn print_publication(context: &CommandContext, answer: &serde_json::Value) -> Result<()> {
    if !context.out.is_json() && !answer["requests"].is_null() {
        context.out.line(request_text(&answer["requests"]))?;
    }
    SessionOutcome::announce(context, answer)
}

// SPDX-License-Identifier: Apache-2.0
//! `esker init`: creates a store.

use clap::{Args, ValueEnum};
use esker_base::store::{StoreSharing, identity, url};
use esker_base::{Result, shell_word};
use serde_json::json;

use crate::context::CommandContext;
use crate::mount_overlap;

/// Create a store
///
/// The directory must be empty or new. On a parallel file system every process must see it the same
/// way; S3 must support conditional writes (`If-None-Match`).
///
/// With --shared the group of the directory can use the store too, whatever umasks its members
/// have: the directory gets the set-group-id bit, and everything created in it gets its group and
/// permission bits. To share with a group other than your own, first create the directory and give
/// it to the group with `chgrp`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker init --store /scratch/store
  mkdir /scratch/lab && chgrp lab /scratch/lab && esker init --shared --store /scratch/lab
  esker init --store s3://bucket/prefix")]
pub struct InitCommand {
    /// Let the directory's group read and write the store; with --shared=world all others read it
    #[arg(
        long,
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "group",
        value_name = "WHO"
    )]
    shared: Option<SharedWith>,
}

/// Users of a store besides its owner.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SharedWith {
    /// The group reads and writes
    Group,
    /// The group reads and writes, all others read
    World,
}

impl From<SharedWith> for StoreSharing {
    fn from(shared: SharedWith) -> Self {
        match shared {
            SharedWith::Group => Self::Group,
            SharedWith::World => Self::World,
        }
    }
}

impl InitCommand {
    /// Creates the store.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let url = context.store_url();
        mount_overlap::check_new_store(url)?;
        let store = match self.shared {
            None => url::init(url)?,
            Some(shared) => url::init_shared(url, shared.into())?,
        };
        if context.out.is_json() {
            let identity = identity::StoreIdentity::read(&*store)?;
            let made = json!({"store": store.url(), "id": identity.id, "format": identity.format});
            return context.out.json(made);
        }
        context.out.line(format!("created a store at {}", store.url()))?;
        // Absolute, so that it holds in other directories too.
        let word = shell_word(store.url().as_bytes());
        context.out.line(format!("next: export ESKER_STORE={word}; esker import DIR NAME"))
    }
}

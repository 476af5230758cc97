//! `esker init`: makes a store.

use clap::Args;
use esker_base::Result;
use esker_base::store::{identity, url};
use serde_json::json;

use crate::context::Context;

/// Make a store
///
/// The place must be empty or new. A store on a parallel file system must be on one that every
/// process sees the same way; one on S3 must support conditional writes (`If-None-Match`).
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker init --store /scratch/store
  esker init --store s3://bucket/prefix")]
pub struct Init {}

impl Init {
    /// Makes the store.
    pub fn run(self, context: &Context) -> Result<()> {
        let url = context.store_url();
        let store = url::init(url)?;
        if context.out.is_json() {
            let identity = identity::Identity::read(&*store)?;
            let made = json!({"store": store.url(), "id": identity.id, "format": identity.format});
            return context.out.json(made);
        }
        context.out.line(format!("made a store at {}", store.url()))?;
        context.out.line(format!("next: export ESKER_STORE={url}; esker import DIR NAME"))
    }
}

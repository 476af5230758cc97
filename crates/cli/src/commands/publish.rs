//! `esker publish`: gives a session, a snapshot or a stack of snapshots a name.

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetState};

use crate::change::{Change, SessionSettings, announce, check_free};
use crate::context::{Context, set_of, sets_of};
use crate::location::Stack;

/// Publish a session, or compose snapshots
///
/// `publish @SETID NAME` completes a session and publishes it. `publish OTHER NAME` gives what is
/// published a further name. `publish --base A --base B NAME` composes snapshots: same-named
/// directories merge, and of same-named files the earlier base's is shown.
///
/// Publishing takes the same time whatever the size, and survives power loss once it is done.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker publish @3f2a climate-7
  esker publish climate-7 latest
  esker publish --base fixes --base climate-7 climate-7.1")]
pub struct Publish {
    /// What to publish, then its new name; only the name with --base
    #[arg(required = true, num_args = 1..=2, value_name = "[SOURCE] NAME")]
    arguments: Vec<String>,
    /// Compose this snapshot; of several, earlier ones win
    #[arg(long = "base", value_name = "NAME", value_parser = Stack::parser())]
    bases: Vec<Stack>,
    #[command(flatten)]
    settings: SessionSettings,
}

impl Publish {
    /// Publishes.
    pub fn run(self, context: &Context) -> Result<()> {
        match (&self.arguments[..], &self.bases[..]) {
            ([name], bases @ [_, ..]) => {
                let bases = sets_of(&context.repository()?, bases)?;
                let change = Change::begin(context, &bases, name, &self.settings)?;
                change.run(context, |_| Ok(()))
            }
            ([source, name], []) => self.publish(context, source, name),
            ([_], []) => {
                let what = "publish what? `esker publish @SETID NAME`, or with --base";
                Err(Error::new(Kind::Invalid, what))
            }
            _ => {
                let what = "a source and --base exclude each other; begin a session with --base";
                Err(Error::new(Kind::Invalid, what))
            }
        }
    }

    fn publish(&self, context: &Context, source: &str, name: &str) -> Result<()> {
        let repository = context.repository()?;
        check_free(&repository, name)?;
        let source =
            Stack::parse(source.as_bytes()).map_err(|what| Error::new(Kind::Invalid, what))?;
        let set = set_of(&repository, &source)?;
        let manifest = Manifest::load(&**repository.store(), set)?;
        if manifest.state == SetState::Open {
            repository.resume(set, self.settings.options(context))?.publish(name)?;
        } else {
            repository.publish(set, name)?;
        }
        announce(context, name, set)
    }
}

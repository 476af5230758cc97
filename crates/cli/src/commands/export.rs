//! `esker export`: a tree becomes real files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use esker_base::Result;
use esker_fs::export::ExportOptions;
use esker_fs::tally::Tally;

use crate::commands::transfer;
use crate::context::Context;
use crate::location::Location;
use crate::progress;

/// Export a tree as real files
///
/// The opposite of import: everything that was imported comes back, hard links and times too.
/// Owners are kept for the superuser only. The content of each file is checked against its
/// checksum. A single file is written to DIR itself.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker export headers:/ /tmp/headers
  esker export climate-7:/runs/7/out.nc ./out.nc")]
pub struct Export {
    /// What to export
    #[arg(value_name = "NAME[:/path]", value_parser = Location::parser())]
    source: Location,
    /// Where to; must be new or an empty directory
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Threads that write files
    #[arg(long, default_value_t = 4, value_name = "N")]
    threads: usize,
}

impl Export {
    /// Exports the tree.
    pub fn run(self, context: &Context) -> Result<ExitCode> {
        let repository = context.repository()?;
        let view = context.view(&repository, &self.source.stack)?;
        let tally = Arc::new(Tally::default());
        let options = ExportOptions { threads: self.threads };
        let (done, seconds) = context.timed(|| {
            progress::watch("export:", &tally, || {
                view.export(&self.source.path, &self.target, &options, &tally)
            })
        });
        done?;
        transfer::report(context, "exported", &tally, seconds)
    }
}

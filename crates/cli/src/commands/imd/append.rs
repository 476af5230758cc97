// SPDX-License-Identifier: Apache-2.0
//! `esker imd append`: adds dumps of binary records to an indexed directory as further epochs.

use clap::Args;
use esker_base::Result;
use esker_imd::session_directory::AppendBase;

use super::dumps::DumpArguments;
use super::target::{AppendTarget, new_directory};
use crate::context::CommandContext;

/// Append dumps to an indexed directory, as further epochs
///
/// The records must have the layout of the directory's, whose field names apply if no --field is
/// given, and their steps must follow its last one; without --step all files become one epoch, with
/// the step after the last. Existing epochs are not copied: the result is a change set on top of
/// them. NAME then stands for the result, unless --as gives the result another name. If two
/// commands append to one snapshot at once, the first gets the name; the other fails with a
/// conflict (exit code 9) and leaves a session to publish under another name.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd append run:/tracers --preset vpic later/tparticle.*
  esker imd append run:/tracers --as run-2 --preset vpic later/tparticle.*")]
pub struct ImdAppendCommand {
    #[command(flatten)]
    target: AppendTarget,
    #[command(flatten)]
    dumps: DumpArguments,
}

impl ImdAppendCommand {
    /// Appends.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let mut surveyed = self.dumps.survey()?;
        let path = &self.target.target.path;
        let (first_epoch, published) = self.target.publish(context, |session| {
            let base = AppendBase::of(session, path)?;
            base.complete(&mut surveyed.layout);
            if surveyed.layout.step.is_none() {
                surveyed.steps.iter_mut().for_each(|step| step.number = base.next_step());
            }
            let (layout, first) = (&surveyed.layout, surveyed.steps.first());
            base.check(layout.record_layout(), &layout.schema(), first.map(|step| step.number))?;
            let directory = new_directory(session);
            self.dumps.write(session, directory, &surveyed)?;
            directory.append(session, path)?;
            Ok(base.epochs())
        })?;
        self.dumps.report(context, &surveyed.steps, first_epoch, &published)
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker imd import`: turns dumps of binary records into the epochs of an indexed directory.

use clap::Args;
use esker_base::Result;

use super::dumps::DumpArguments;
use super::target::{DirectoryTarget, new_directory};
use crate::context::CommandContext;

/// Import dumps of fixed-width binary records
///
/// Each file has a header and records of one width, of which some bytes are the key; a whole record
/// is stored as the value. Files with the same step in their headers become one epoch; without
/// --step all files do. Types are u8, u16, u32, u64, with `be` for the other byte order, i32, i64,
/// f32, f64, i8, i16, bytesN, and f32*2^N for a number that is an integer once multiplied. Numbers
/// become keys of eight bytes in numeric order and are read back as numbers; so are the fields that
/// --field names. All files are checked before anything is written. Creates the store if there is
/// none.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker imd import run:/tracers --preset vpic dumps/tparticle.*
  esker imd import run:/p --header-bytes 16 --record-bytes 48 --key id=0:u64 --step 8:u32 \\
    --field x=8:f64:m --field y=16:f64:m dumps/*")]
pub struct ImdImportCommand {
    #[command(flatten)]
    target: DirectoryTarget,
    #[command(flatten)]
    dumps: DumpArguments,
}

impl ImdImportCommand {
    /// Imports.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let surveyed = self.dumps.survey()?;
        let ((), published) = self.target.publish(context, |session| {
            let directory = new_directory(session);
            self.dumps.write(session, directory, &surveyed)?;
            self.target.publish_directory(context, session, directory)
        })?;
        self.dumps.report(context, &surveyed.steps, 0, &published)
    }
}

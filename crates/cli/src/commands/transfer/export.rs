// SPDX-License-Identifier: Apache-2.0
//! `esker export`: writes a tree as real files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use esker_base::{Error, Kind, Result, shell_word};
use esker_fs::inode::FileKind;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::tally::TransferTally;

use super::report::{report, report_problems};
use crate::context::CommandContext;
use crate::indexed_export::IndexedFormName;
use crate::interrupt;
use crate::location::StackPath;
use crate::{mount_overlap, progress, usage};

/// Export a tree as real files
///
/// The inverse of import: restores everything that was imported, including hard links and times.
/// Only the superuser can restore owners. The content of each file is checked against its checksum.
/// A single file is written to DEST itself.
///
/// Everything is written to DEST.esker-partial-DIGEST beside DEST, which is renamed to DEST once it
/// is complete. An interrupted export keeps it: the same command with --resume continues.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker export headers:/ /tmp/headers
  esker export --resume headers:/ /tmp/headers
  esker export run:/ /tmp/run --indexed npy
  esker export climate-7:/runs/7/out.nc ./out.nc")]
pub struct ExportCommand {
    /// Path to export
    #[arg(value_name = "NAME[:/path]", value_parser = StackPath::parser())]
    source: StackPath,
    /// Destination; must be new or an empty directory, unless --overwrite is given
    #[arg(value_name = "DEST")]
    target: PathBuf,
    /// Replace DEST once the export is complete: a directory with everything in it, or a file
    #[arg(long)]
    overwrite: bool,
    /// Continue an interrupted export of the same path to DEST, if there is one
    #[arg(long)]
    resume: bool,
    /// Threads that write files
    #[arg(long, default_value_t = 4, value_name = "N")]
    threads: usize,
    /// Form of indexed directories; a single file gets the form's extension, unless it is exported
    /// alone
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    indexed: IndexedFormName,
}

impl ExportCommand {
    /// Exports the tree.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        if self.target.as_os_str() == "-" {
            usage::exit(
                "an export does not go to standard output, to which `esker cat --help` says how to \
                 write a file; a directory or file of this name is ./-",
            );
        }
        let repository = context.repository()?;
        mount_overlap::check_export_target(context.store_url(), &self.target)?;
        let view = context.view(&repository, &self.source.stack)?;
        let tally = Arc::new(TransferTally::default());
        let Self { threads, overwrite, resume, .. } = self;
        let indexed = Some(self.indexed.form());
        let options = ExportOptions { threads, overwrite, resume, indexed };
        let partial =
            view.export_partial_path(&self.source.path, &self.target, options.indexed.as_ref());
        interrupt::advise(self.advice(&partial));
        self.check_slash(&view)?;
        let (done, seconds) = context.timed(|| {
            progress::watch("export:", &tally, || {
                view.export(&self.source.path, &self.target, &options, &tally)
            })
        });
        let is_refused = |error: &Error| {
            matches!(error.kind(), Kind::Exists | Kind::NotEmpty | Kind::Conflict | Kind::Invalid)
        };
        if done.is_err() {
            report_problems(&tally.take_problems(), tally.counts().problems);
        }
        done.map_err(|error| {
            if is_refused(&error) || std::fs::symlink_metadata(&partial).is_err() {
                return error;
            }
            error.within(self.advice(&partial))
        })?;
        report(context, "exported", &tally, seconds)
    }

    /// Fails if the target ends in a slash, and the export would make a file.
    fn check_slash(&self, view: &Namespace) -> Result<()> {
        if !self.target.as_os_str().as_bytes().ends_with(b"/") {
            return Ok(());
        }
        let inode = view.stat(&self.source.path, FollowLinks::No)?;
        let is_one_file = !matches!(self.indexed, IndexedFormName::Files);
        let becomes_directory = match inode.kind() {
            Some(FileKind::Indexed) => !is_one_file,
            _ => inode.is_directory(),
        };
        if becomes_directory {
            return Ok(());
        }
        let what = format!(
            "{} is to be a directory, and {} becomes a file: give the file's name",
            self.target.display(),
            self.source
        );
        Err(Error::new(Kind::NotADirectory, what))
    }

    /// The advice for an export that ends early: what it leaves, and how to continue.
    fn advice(&self, partial: &Path) -> String {
        let word = |path: &Path| shell_word(path.as_os_str().as_bytes());
        let source = shell_word(self.source.to_string().as_bytes());
        let overwrite = if self.overwrite { "--overwrite " } else { "" };
        let form = match self.indexed {
            IndexedFormName::Files => "",
            IndexedFormName::Npy => "--indexed npy ",
            IndexedFormName::Csv => "--indexed csv ",
        };
        let (target, partial) = (word(&self.target), word(partial));
        format!(
            "{target} is unchanged, and {partial} has the part exported so far: `esker export \
             --resume {overwrite}{form}{source} {target}` continues it, `rm -r {partial}` \
             removes it"
        )
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker cat`: prints the bytes of files.

use clap::Args;
use esker_base::store::SharedStore;
use esker_base::{Error, Result};
use esker_fs::stack::namespace::FollowLinks;
use esker_imd::entry::{self, IndexedEntry};

use crate::context::CommandContext;
use crate::location::StackPath;

/// Bytes read at once.
const PIECE_BYTES: usize = 4 << 20;

/// Print the bytes of files
///
/// A whole file is checked against its checksum: if it is damaged the exit code says so, although
/// bytes have been printed by then.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker cat headers:/stdio.h | less
  esker cat climate:/out.nc --offset 1M --length 64K > part")]
pub struct CatCommand {
    /// Files
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Start at this byte
    #[arg(long, value_parser = crate::quantity::bytes, default_value = "0", value_name = "SIZE")]
    offset: u64,
    /// Print at most this many bytes
    #[arg(long, value_parser = crate::quantity::bytes, value_name = "SIZE")]
    length: Option<u64>,
}

impl CatCommand {
    /// Prints.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        for (location, view) in context.views(&repository, &self.locations)? {
            let in_file = |error: Error| location.in_error(error);
            if let Some(entry) = entry::find_key(&view, &location.path).map_err(in_file)? {
                self.print_values(context, repository.store(), &entry).map_err(in_file)?;
                continue;
            }
            let inode = view.stat(&location.path, FollowLinks::Yes).map_err(in_file)?;
            if self.offset == 0 && self.length.is_none() {
                view.read_all(&inode, &mut |bytes| context.out.raw(bytes)).map_err(in_file)?;
                continue;
            }
            let mut offset = self.offset;
            let end = self.length.map_or(u64::MAX, |length| offset.saturating_add(length));
            while offset < end {
                let count = usize::try_from(end - offset).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let bytes = view.read(&inode, offset, count).map_err(in_file)?;
                if bytes.is_empty() {
                    break;
                }
                context.out.raw(&bytes)?;
                offset += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Prints the values of a key of an indexed directory, one after the other.
    fn print_values(
        &self,
        context: &CommandContext,
        store: &SharedStore,
        entry: &IndexedEntry,
    ) -> Result<()> {
        let (_, all) = entry.key_file(store)?;
        let start = usize::try_from(self.offset).unwrap_or(usize::MAX).min(all.len());
        let length = self.length.and_then(|length| usize::try_from(length).ok());
        let end = length.map_or(all.len(), |length| all.len().min(start.saturating_add(length)));
        context.out.raw(&all[start..end])
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Listing format: the options of commands that list directories, and the lines that they print.

use clap::{ArgAction, Args, ValueEnum};
use esker_base::Result;
use esker_fs::inode::{FileKind, Inode};

use crate::location::StackPath;
use crate::output::StandardOutput;
use crate::text;
use crate::users::UserNames;

/// Order of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SortOrder {
    /// By name
    #[default]
    Name,
    /// Largest first
    Size,
    /// Newest first
    Time,
    /// As stored
    None,
}

/// Options of a listing. The command that has them disables clap's own -h.
#[derive(Args)]
pub struct ListingFormat {
    /// Also show mode, links, owner, group, size and time
    #[arg(short, long)]
    pub long: bool,
    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// List directories themselves, not their contents
    #[arg(short, long)]
    pub directory: bool,
    /// List everything below, each with its path
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Sizes as 1.5 KiB
    #[arg(short = 'h', short_alias = 'H', long)]
    human: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Show owners and groups by number
    #[arg(short, long)]
    numeric: bool,
    /// Order of entries
    #[arg(long, value_enum, default_value_t, value_name = "ORDER")]
    sort: SortOrder,
    /// Newest first, as --sort time
    #[arg(short = 't', conflicts_with = "sort")]
    by_time: bool,
    /// Largest first, as --sort size
    #[arg(short = 'S', conflicts_with_all = ["sort", "by_time"])]
    by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// Print the id of each file first: the same for all names of one file
    #[arg(short, long)]
    inode: bool,
    /// One entry per line, which is always so
    #[arg(short = '1')]
    one: bool,
}

/// Number of links of an entry, and of entries if it is a directory; `None` if they are not known.
pub type EntryCounts = (u32, Option<usize>);

impl ListingFormat {
    /// The order that was asked for.
    pub fn order(&self) -> SortOrder {
        match (self.by_time, self.by_size) {
            (true, _) => SortOrder::Time,
            (_, true) => SortOrder::Size,
            _ => self.sort,
        }
    }

    /// The users whose names lines show.
    pub fn users(&self) -> UserNames {
        if self.long && !self.numeric { UserNames::of_machine() } else { UserNames::none() }
    }

    /// True if an entry called `name` is listed.
    pub fn lists(&self, name: &[u8]) -> bool {
        self.all || !name.starts_with(b".")
    }

    /// True if lines, or their order, depend on more than names and kinds.
    pub fn needs_attributes(&self) -> bool {
        self.long || self.inode || matches!(self.order(), SortOrder::Size | SortOrder::Time)
    }

    /// Puts `entries` in order; `keys` returns the name, size and time of modification of one.
    pub fn sort<T>(&self, entries: &mut [T], keys: impl Fn(&T) -> (&[u8], u64, i64)) {
        let by_name = |a: &T, b: &T| keys(a).0.cmp(keys(b).0);
        match self.order() {
            SortOrder::None => return,
            SortOrder::Name => entries.sort_by(by_name),
            SortOrder::Size => {
                entries.sort_by(|a, b| keys(b).1.cmp(&keys(a).1).then_with(|| by_name(a, b)));
            }
            SortOrder::Time => {
                entries.sort_by(|a, b| keys(b).2.cmp(&keys(a).2).then_with(|| by_name(a, b)));
            }
        }
        if self.reverse {
            entries.reverse();
        }
    }

    /// Prints the heading of the location with this `index`, if several are listed.
    pub fn head(&self, out: &StandardOutput, locations: &[StackPath], index: usize) -> Result<()> {
        if locations.len() < 2 || self.directory || out.is_json() {
            return Ok(());
        }
        let gap = if index > 0 { "\n" } else { "" };
        let location = locations[index].to_string();
        out.line(format!("{gap}{}:", text::printable(location.as_bytes())))
    }

    /// Prints the line of an entry called `name`, whose `counts` are only asked for if it shows them.
    pub fn print(
        &self,
        (out, users): (&StandardOutput, &UserNames),
        (name, inode): (&[u8], &Inode),
        counts: impl FnOnce() -> EntryCounts,
    ) -> Result<()> {
        if self.inode {
            out.raw(format!("{:032x} ", inode.id).as_bytes())?;
        }
        if self.long {
            out.raw(self.columns(users, inode, counts()).as_bytes())?;
        }
        out.name(name)?;
        if self.long && inode.kind() == Some(FileKind::Symlink) {
            out.raw(b" -> ")?;
            out.name(&inode.content)?;
        }
        out.raw(b"\n")
    }

    fn columns(&self, users: &UserNames, inode: &Inode, (nlink, entries): EntryCounts) -> String {
        let size = match inode.kind() {
            Some(FileKind::Directory) => entries.map_or("-".into(), |count| count.to_string()),
            Some(FileKind::CharDevice | FileKind::BlockDevice) => {
                format!("{}, {}", rustix::fs::major(inode.rdev), rustix::fs::minor(inode.rdev))
            }
            _ if self.human => text::bytes(inode.size),
            _ => inode.size.to_string(),
        };
        format!(
            "{} {:>3} {:<8} {:<8} {size:>10} {} ",
            text::mode(inode),
            nlink,
            users.user(inode.uid),
            users.group(inode.gid),
            text::minute(inode.mtime_ns),
        )
    }
}

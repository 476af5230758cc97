// SPDX-License-Identifier: Apache-2.0
//! `esker find`: searches a tree.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::ExitCode;

use clap::Args;
use esker_base::Result;
use esker_fs::inode::FileKind;
use esker_fs::inode::timestamp;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::glob::Glob;
use esker_fs::traversal::predicate::Predicate;
use esker_fs::traversal::walk::{VisitedEntry, WalkNext, WalkOrder, WalkStep};

use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::CommandProblems;
use crate::quantity::{self, QuantityComparison};
use crate::{text, usage};

const DAY_NS: i64 = 86_400_000_000_000;

/// Search a tree
///
/// Prints the paths of entries that meet all conditions. Patterns are shell patterns that match the
/// whole name or path; `*` also matches slashes. As with find(1), one dash is enough for the names
/// of conditions.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker find headers:/ --name '*.h' --size +100K
  esker find headers:/ --type f --newer 7d -print0 | xargs -0 ...
  esker find climate:/ --mtime -1 --path '*/out/*' --json")]
pub struct FindCommand {
    /// Where to start
    #[arg(required = true, value_name = "NAME[:/path]", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Name matches
    #[arg(long, value_name = "GLOB")]
    name: Option<OsString>,
    /// Name matches, ignoring case
    #[arg(long, value_name = "GLOB")]
    iname: Option<OsString>,
    /// Path from the root matches
    #[arg(long, value_name = "GLOB")]
    path: Option<OsString>,
    /// f file, d directory, l symbolic link, p pipe, s socket, c b devices; several as f,l
    #[arg(long = "type", value_name = "KINDS", value_parser = kinds)]
    kinds: Option<KindFilter>,
    /// More than (+), less than (-) or exactly this many bytes, such as +10M
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true)]
    size: Option<String>,
    /// Modified more than (+) or less than (-) this many days ago, or that day
    #[arg(long, value_name = "[+-]DAYS", allow_hyphen_values = true)]
    mtime: Option<String>,
    /// Modified after a time: 2026-01-31, 2026-01-31T17:30 (UTC), @SECONDS, or an age such as 7d
    #[arg(long, value_name = "TIME")]
    newer: Option<String>,
    /// Modified before a time
    #[arg(long, value_name = "TIME")]
    older: Option<String>,
    /// Owned by this user number
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Owned by this group number
    #[arg(long, value_name = "GID")]
    gid: Option<u32>,
    /// At most this many levels below the start
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// At least this many levels below the start
    #[arg(long, value_name = "N", default_value_t = 0)]
    mindepth: usize,
    /// End each path with a zero byte instead of a newline
    #[arg(long)]
    print0: bool,
    /// Sort by name
    #[arg(long)]
    sorted: bool,
}

#[derive(Clone, Debug)]
struct KindFilter(Vec<FileKind>);

fn kinds(text: &str) -> Result<KindFilter, String> {
    let kind = |letter: &str| {
        Ok(match letter {
            "f" | "file" => FileKind::File,
            "d" | "directory" => FileKind::Directory,
            "l" | "symlink" => FileKind::Symlink,
            "p" | "fifo" => FileKind::Fifo,
            "s" | "socket" => FileKind::Socket,
            "c" | "char_device" => FileKind::CharDevice,
            "b" | "block_device" => FileKind::BlockDevice,
            "i" | "indexed" => FileKind::Indexed,
            _ => return Err(format!("{letter:?} is not a kind; use f, d, l, p, s, c, b or i")),
        })
    };
    text.split(',').map(kind).collect::<Result<_, String>>().map(KindFilter)
}

/// Adds a second dash to conditions of `find` that have only one, the form that find(1) uses.
pub fn long_flags(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const FLAGS: &[&str] = &[
        "-name",
        "-iname",
        "-path",
        "-type",
        "-size",
        "-mtime",
        "-newer",
        "-older",
        "-uid",
        "-gid",
        "-maxdepth",
        "-mindepth",
        "-print0",
    ];
    let mut is_find = false;
    arguments
        .map(|argument| {
            is_find |= argument == "find";
            let known = FLAGS.iter().any(|flag| argument == *flag);
            if is_find && known {
                return OsString::from_vec([b"-", argument.as_bytes()].concat());
            }
            argument
        })
        .collect()
}

impl FindCommand {
    /// Searches.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let predicates = self.predicates(timestamp::of_clock(context.now_ns()));
        let repository = context.repository()?;
        let order = if self.sorted { WalkOrder::Name } else { WalkOrder::Stored };
        let problems = CommandProblems::default();
        for (location, view) in context.views(&repository, &self.locations)? {
            let walked =
                view.traverse(&location.path, FollowLinks::No, order, &mut |step| match step {
                    WalkStep::Entry(visit) => {
                        let deep_enough = visit.depth >= self.mindepth;
                        if deep_enough && predicates.iter().all(|predicate| predicate.holds(visit))
                        {
                            self.show(context, visit)?;
                        }
                        let deeper = self.maxdepth.is_none_or(|depth| visit.depth < depth);
                        Ok(if deeper { WalkNext::Into } else { WalkNext::Past })
                    }
                    WalkStep::Left(_) => Ok(WalkNext::Into),
                    WalkStep::Unreadable(visit, error) => {
                        problems.report(&location.stack, visit.path, &error);
                        Ok(WalkNext::Into)
                    }
                });
            problems.pass(context, location, walked)?;
        }
        Ok(problems.exit_code())
    }

    fn show(&self, context: &CommandContext, visit: &VisitedEntry) -> Result<()> {
        let out = &context.out;
        if out.is_json() {
            return out.json(text::entry(visit.path, visit.inode));
        }
        if self.print0 {
            out.raw(visit.path)?;
            return out.raw(b"\0");
        }
        out.name(visit.path)?;
        out.raw(b"\n")
    }

    fn predicates(&self, now_ns: i64) -> Vec<Predicate> {
        let glob = |pattern: &Option<OsString>, ignore_case| {
            pattern.as_deref().map(|glob: &OsStr| Glob::new(glob.as_bytes(), ignore_case))
        };
        let mut all = Vec::new();
        all.extend(glob(&self.name, false).map(Predicate::Name));
        all.extend(glob(&self.iname, true).map(Predicate::Name));
        all.extend(glob(&self.path, false).map(Predicate::Path));
        all.extend(self.kinds.as_ref().map(|kinds| Predicate::Kind(kinds.0.clone())));
        if let Some(size) = &self.size {
            let (comparison, number) = quantity::comparison(size);
            let bytes = usage::value_of(quantity::bytes(number));
            all.push(Predicate::Size(match comparison {
                QuantityComparison::More => bytes.saturating_add(1)..=u64::MAX,
                QuantityComparison::Less if bytes == 0 => {
                    usage::exit("nothing has less than no bytes")
                }
                QuantityComparison::Less => 0..=bytes - 1,
                QuantityComparison::Equal => bytes..=bytes,
            }));
        }
        if let Some(days) = &self.mtime {
            let (comparison, number) = quantity::comparison(days);
            let expected = |_| format!("{days:?}: expected days, such as 7, +7 or -7");
            let days: u32 = usage::value_of(number.parse().map_err(expected));
            let ago = |days: i64| now_ns.saturating_sub(days.saturating_mul(DAY_NS));
            all.push(Predicate::Modified(match comparison {
                QuantityComparison::More => i64::MIN..=ago(i64::from(days) + 1),
                QuantityComparison::Less => ago(i64::from(days)).saturating_add(1)..=i64::MAX,
                QuantityComparison::Equal => {
                    ago(i64::from(days) + 1).saturating_add(1)..=ago(i64::from(days))
                }
            }));
        }
        if let Some(time) = &self.newer {
            let moment = usage::value_of(quantity::moment(time, now_ns));
            all.push(Predicate::Modified(moment.saturating_add(1)..=i64::MAX));
        }
        if let Some(time) = &self.older {
            let moment = usage::value_of(quantity::moment(time, now_ns));
            all.push(Predicate::Modified(i64::MIN..=moment.saturating_sub(1)));
        }
        all.extend(self.uid.map(Predicate::Owner));
        all.extend(self.gid.map(Predicate::Group));
        all
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Files of live namespaces: `esker live ls`, `mkdir`, `put` and the like, through the server.

use std::io::Read;
use std::path::PathBuf;

use clap::Subcommand;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::LiveTree;
use esker_live::client::{LiveEntry, LiveFile, Request};
use esker_live::wire::{LiveAttributes, TRANSFER_BYTES_MAX};
use serde_json::json;

use super::{connect, live_name};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::output::notice;
use crate::{text, usage};

/// Operations on files of a live namespace.
#[derive(Subcommand)]
pub enum LiveFileAction {
    /// List a directory of a live namespace
    #[command(after_help = "Example:\n  esker live ls run:/results")]
    Ls {
        /// The directory
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        path: StackPath,
    },
    /// Make directories in a live namespace
    #[command(after_help = "\
Examples:
  esker live mkdir run:/results
  esker live mkdir --spread run:/steps      one large directory, shared by all servers")]
    Mkdir {
        /// Spread the names in each of them over all seats, so that all servers share the work of one
        /// large directory. With N seats, N-1 of N renames in it are between seats and wait for three
        /// syncs
        #[arg(long)]
        spread: bool,
        /// The directories
        #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
        paths: Vec<StackPath>,
    },
    /// Write a file of a live namespace; replaces its content
    #[command(after_help = "Example:\n  date | esker live put - run:/results/date")]
    Put {
        /// The file to read, or - for standard input
        file: PathBuf,
        /// Its place
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        path: StackPath,
    },
    /// Print a file of a live namespace
    #[command(after_help = "Example:\n  esker live cat run:/results/date")]
    Cat {
        /// The file
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        path: StackPath,
    },
    /// Remove files and directories of a live namespace
    #[command(after_help = "\
Examples:
  esker live rm run:/results/date run:/results
  esker live rm -r run:/results")]
    Rm {
        /// Remove directories and everything in them; without it they must be empty
        #[arg(short, long)]
        recursive: bool,
        /// The files and directories, in order
        #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
        paths: Vec<StackPath>,
    },
    /// Rename a file or directory of a live namespace
    #[command(after_help = "Example:\n  esker live mv run:/results/date run:/date")]
    Mv {
        /// Its place
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        from: StackPath,
        /// Its new place, in the same namespace
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        to: StackPath,
    },
}

impl LiveFileAction {
    /// Runs the operation. Changes are durable once it returns.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        match self {
            Self::Ls { path } => in_tree(context, &path, |tree| ls(context, tree, &path)),
            Self::Cat { path } => in_tree(context, &path, |tree| cat(context, tree, &path)),
            Self::Put { file, path } => {
                in_tree(context, &path, |tree| put(context, tree, &file, &path))
            }
            Self::Mkdir { spread, paths } => each(context, &paths, |tree, path| {
                let (dir, name) = tree.locate(&path.path)?;
                let mode = 0o777 & !context.umask;
                if spread {
                    tree.make_spread_directory(&dir, name, mode)?;
                    if tree.seats() == 1 {
                        notice(format!("{path} is a plain directory: its namespace has one seat"));
                    }
                    return Ok(());
                }
                tree.change(Request::make_directory(&dir, mode, &[name]).durable())
            }),
            Self::Rm { recursive, paths } => each(context, &paths, |tree, path| {
                let (dir, name) = tree.locate(&path.path).map_err(|error| match error.kind() {
                    Kind::Invalid => Error::new(Kind::Invalid, "the root cannot be removed"),
                    _ => error,
                })?;
                match tree.lookup(&dir, name)?.kind {
                    FileKind::Directory if recursive => tree.remove_tree(&dir, name),
                    FileKind::Directory => tree
                        .change(Request::remove_directory(&dir, &[name]).durable())
                        .map_err(advise_recursion),
                    _ => tree.change(Request::unlink(&dir, &[name]).durable()),
                }
            }),
            Self::Mv { from, to } => {
                if from.stack != to.stack {
                    usage::exit(format!("{to} is not in {}: mv moves within one", from.stack))
                }
                in_tree(context, &from, |tree| {
                    let (old_dir, old) = tree.locate(&from.path)?;
                    let (dir, name) = tree.locate(&to.path)?;
                    tree.rename((&old_dir, old), (&dir, name)).map_err(|error| {
                        match error.kind() {
                            Kind::CrossDevice => {
                                let what =
                                    format!("{}: copy it, or use `mv` in a mount", error.context());
                                Error::new(Kind::CrossDevice, what)
                            }
                            _ => error,
                        }
                    })?;
                    tree.sync()
                })
            }
        }
    }
}

/// Runs `act` on the live namespace of `path`.
fn in_tree(
    context: &CommandContext,
    path: &StackPath,
    act: impl FnOnce(&mut LiveTree) -> Result<()>,
) -> Result<()> {
    let mut tree = connect(&context.store()?, live_name(path))?;
    act(&mut tree).map_err(|error| path.in_error(error))?;
    tree.close()
}

/// Runs `act` for each of `paths`, in order.
fn each(
    context: &CommandContext,
    paths: &[StackPath],
    act: impl Fn(&mut LiveTree, &StackPath) -> Result<()>,
) -> Result<()> {
    paths.iter().try_for_each(|path| in_tree(context, path, |tree| act(tree, path)))
}

fn advise_recursion(error: Error) -> Error {
    match error.kind() {
        Kind::NotEmpty => {
            let what = format!("{}: add -r to remove all that is in it", error.context());
            Error::new(Kind::NotEmpty, what)
        }
        _ => error,
    }
}

fn ls(context: &CommandContext, tree: &mut LiveTree, path: &StackPath) -> Result<()> {
    let place = tree.resolve(&path.path, FollowLinks::Yes)?;
    let mut entries = match place.attributes.kind {
        FileKind::Directory => {
            let dir = tree.dir(&path.path)?;
            // Names alone need no other server.
            if context.out.is_json() { tree.list(&dir)? } else { tree.list_as_named(&dir)? }
        }
        _ => vec![LiveEntry { name: path.last().to_vec(), attributes: place.attributes }],
    };
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    for LiveEntry { name, attributes } in entries {
        match context.out.is_json() {
            true => context.out.json(object(&name, &attributes))?,
            false => {
                context.out.name(&name)?;
                context.out.line("")?;
            }
        }
    }
    Ok(())
}

/// An entry as JSON; docs/guide/command.md describes it.
fn object(name: &[u8], attributes: &LiveAttributes) -> serde_json::Value {
    json!({
        "name": String::from_utf8_lossy(name),
        "kind": text::kind(attributes.kind),
        "mode": attributes.mode,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "nlink": attributes.nlink,
        "size": attributes.size,
        "mtime_ns": attributes.mtime_ns,
    })
}

fn cat(context: &CommandContext, tree: &mut LiveTree, path: &StackPath) -> Result<()> {
    let (dir, name) = tree.locate_file(&path.path)?;
    let content = tree.read(&dir, &name)?;
    context.out.raw(&content)
}

fn put(
    context: &CommandContext,
    tree: &mut LiveTree,
    file: &std::path::Path,
    path: &StackPath,
) -> Result<()> {
    let failed = |error| Error::io(error, format!("read {}", file.display()));
    let mut source: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    // Read before anything is changed: a source that cannot be read costs no content.
    let (mut piece, mut offset) = (vec![0; TRANSFER_BYTES_MAX], 0u64);
    let mut count = source.read(&mut piece).map_err(failed)?;
    let (mut dir, name) = tree.locate(&path.path)?;
    let (mut name, mode) = (name.to_vec(), 0o666 & !context.umask);
    // Durable requests are repeated if their server dies.
    match tree.change(Request::create(&dir, mode, &[&name]).durable()) {
        Err(error) if error.kind() == Kind::Exists => {
            (dir, name) = tree.locate_file(&path.path)?;
            let empty = esker_live::wire::AttributeRequest { size: Some(0), ..Default::default() };
            let file = LiveFile::at(&dir, &name);
            tree.change(Request::set_attributes(&file, &empty).durable())?;
        }
        created => created?,
    }
    while count > 0 {
        let file = LiveFile::at(&dir, &name);
        tree.change(Request::write(&file, offset, &piece[..count]).durable())?;
        offset += count as u64;
        count = source.read(&mut piece).map_err(failed)?;
    }
    Ok(())
}

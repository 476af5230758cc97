// SPDX-License-Identifier: Apache-2.0
//! `esker stat`: shows everything known about a file.

use clap::Args;
use esker_base::{Error, Result};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::walk::normalized;
use esker_imd::entry;
use serde_json::{Map, Value, json};

use crate::context::CommandContext;
use crate::location::StackPath;
use crate::text;
use crate::users::UserNames;

/// Show everything known about files
///
/// Attributes, extended attributes and the location of the content: in the inode, or in the data
/// log of a change set.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker stat headers:/stdio.h
  esker stat --json headers:/stdio.h | jq .size")]
pub struct StatCommand {
    /// Files
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    locations: Vec<StackPath>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
}

impl StatCommand {
    /// Shows.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let repository = context.repository()?;
        let users = UserNames::of_machine();
        let follow = if self.dereference { FollowLinks::Yes } else { FollowLinks::No };
        for (location, view) in context.views(&repository, &self.locations)? {
            let path = normalized(&location.path);
            let in_file = |error: Error| location.in_error(error);
            let key = entry::find_key(&view, &location.path).map_err(in_file)?;
            let is_key = key.is_some();
            let inode = match key {
                Some(key) => key.key_file(repository.store()).map_err(in_file)?.0,
                None => view.stat(&location.path, follow).map_err(in_file)?,
            };
            if context.out.is_json() {
                context.out.json(object(&view, &path, &inode)?)?;
            } else {
                show(context, &view, &users, &path, (&inode, is_key))?;
            }
        }
        Ok(())
    }
}

fn object(view: &Namespace, path: &[u8], inode: &Inode) -> Result<Map<String, Value>> {
    let mut object = text::entry(path, inode);
    let mut xattrs = Vec::new();
    for (name, value) in view.xattrs(inode)? {
        let mut xattr = Map::new();
        text::put_bytes(&mut xattr, "name", &name);
        text::put_bytes(&mut xattr, "value", &value);
        xattrs.push(xattr);
    }
    object.insert("xattrs".into(), xattrs.into());
    let content = inode.extent.map(|extent| {
        json!({
            "set": extent.set.to_string(),
            "log": extent.log,
            "offset": extent.offset,
            "length": extent.length,
            "crc32c": format!("{:08x}", extent.checksum),
        })
    });
    object.insert("extent".into(), content.into());
    Ok(object)
}

fn show(
    context: &CommandContext,
    view: &Namespace,
    users: &UserNames,
    path: &[u8],
    (inode, is_key): (&Inode, bool),
) -> Result<()> {
    show_attributes(context, users, path, inode)?;
    let field = |name: &str, value: String| show_field(context, name, value);
    match inode.extent {
        Some(extent) => {
            let place = (extent.length, extent.offset, extent.log, extent.set);
            let (length, offset, log, set) = place;
            field("content", format!("{length} bytes at {offset} of data log {log:x} of @{set}"))?;
        }
        None if is_key => field("content", "the values of a key, one after the other".to_owned())?,
        None if inode.kind() == Some(FileKind::File) => {
            field("content", "in the inode".to_owned())?;
        }
        None => {}
    }
    for (name, value) in view.xattrs(inode)? {
        field("xattr", format!("{} = {}", text::printable(&name), text::printable(&value)))?;
    }
    Ok(())
}

/// Prints what every file has, line by line.
pub fn show_attributes(
    context: &CommandContext,
    users: &UserNames,
    path: &[u8],
    inode: &Inode,
) -> Result<()> {
    let field = |name: &str, value: String| show_field(context, name, value);
    field("path", text::printable(path))?;
    if inode.kind() == Some(FileKind::Symlink) {
        field("target", text::printable(&inode.content))?;
    }
    field("kind", inode.kind().map_or("", text::kind).to_owned())?;
    field("size", format!("{} bytes", text::count(inode.size)))?;
    field("mode", format!("{:04o} {}", inode.mode, text::mode(inode)))?;
    field("owner", format!("{} ({})", users.user(inode.uid), inode.uid))?;
    field("group", format!("{} ({})", users.group(inode.gid), inode.gid))?;
    field("links", inode.nlink.to_string())?;
    if matches!(inode.kind(), Some(FileKind::CharDevice | FileKind::BlockDevice)) {
        let numbers = (rustix::fs::major(inode.rdev), rustix::fs::minor(inode.rdev));
        field("device", format!("{}, {}", numbers.0, numbers.1))?;
    }
    field("modified", text::instant(inode.mtime_ns))?;
    field("changed", text::instant(inode.ctime_ns))?;
    field("accessed", text::instant(inode.atime_ns))?;
    field("id", format!("{:032x}", inode.id))
}

/// Prints a line with the `value` of what is called `name`.
pub fn show_field(context: &CommandContext, name: &str, value: String) -> Result<()> {
    context.out.line(format!("{name:>9}  {value}"))
}

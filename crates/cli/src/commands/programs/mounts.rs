// SPDX-License-Identifier: Apache-2.0
//! `esker mounts`: the mounts of this machine.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_fuse::{
    ControlRequest, ListedMount, MountStatus, ask, dead_mount_advice, mounts, status_of,
};
use serde_json::{Map, Value};

use super::mount::request_text;
use crate::context::CommandContext;
use crate::text;
use crate::users::UserNames;

/// List mounts, the processes that serve them, and their logs
///
/// For a mount that you may not access, only directory, name and owner are shown.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker mounts
  esker mounts --json | jq -r .log")]
pub struct MountsCommand {
    /// Show the number of the kernel's requests by kind, of mounts with --statistics
    #[arg(long)]
    statistics: bool,
}

impl MountsCommand {
    /// Lists them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let users = UserNames::of_machine();
        mounts()?.iter().try_for_each(|mount| self.show(context, &users, mount))
    }

    fn show(&self, context: &CommandContext, users: &UserNames, mount: &ListedMount) -> Result<()> {
        let mut object = Map::new();
        text::put_bytes(&mut object, "mountpoint", mount.mountpoint.as_os_str().as_bytes());
        object.insert("name".into(), mount.name.clone().into());
        object.insert("uid".into(), mount.uid.into());
        let details = match status_of(&mount.mountpoint) {
            Ok(status) => self.running(mount, status, &mut object),
            Err(error) => {
                object.insert("error".into(), error.to_string().into());
                not_asked(mount, users, &error)
            }
        };
        if context.out.is_json() {
            return context.out.json(object);
        }
        let mountpoint = text::printable(mount.mountpoint.as_os_str().as_bytes());
        let name = text::printable(mount.name.as_bytes());
        context.out.line(format!("{mountpoint}  {name}{details}"))
    }

    /// Adds the details of a mount that answers to `object`, and returns them as text.
    fn running(
        &self,
        mount: &ListedMount,
        status: MountStatus,
        object: &mut Map<String, Value>,
    ) -> String {
        let log = log_of(status.pid).map(|log| log.display().to_string());
        let set = status.set.as_ref().map_or(String::new(), |set| format!(" @{set}"));
        let shown = log.as_ref().map_or("no log".into(), |log| format!("log {log}"));
        let mut details = format!("{set}  process {}  {shown}", status.pid);
        object.insert("set".into(), status.set.into());
        object.insert("pid".into(), status.pid.into());
        object.insert("log".into(), log.into());
        if self.statistics
            && let Ok(answer) = ask(&mount.mountpoint, &ControlRequest::Statistics)
        {
            details.push_str(&format!("  {}", request_text(&answer["requests"])));
            object.insert("requests".into(), answer["requests"].clone());
        }
        details
    }
}

/// Describes a mount that could not be asked because of `error`. Only users who may end it get advice.
fn not_asked(mount: &ListedMount, users: &UserNames, error: &Error) -> String {
    let user = rustix::process::geteuid();
    let may_end = user.is_root() || mount.uid == Some(user.as_raw());
    let owner = mount.uid.map_or("another user".to_owned(), |uid| users.user(uid));
    match (error.kind(), may_end) {
        (Kind::Closed, true) => {
            let advice = dead_mount_advice(&mount.mountpoint, &mount.name);
            format!("  its process ended: {advice}")
        }
        (Kind::Closed, false) => format!("  of {owner}, whose process ended"),
        (Kind::Denied, false) => format!("  of {owner}"),
        _ => format!("  of {owner}: {error}"),
    }
}

/// The file to which the process logs errors, if the user may read that.
fn log_of(pid: u32) -> Option<PathBuf> {
    let log = std::fs::read_link(format!("/proc/{pid}/fd/2")).ok()?;
    log.is_file().then_some(log)
}

// SPDX-License-Identifier: Apache-2.0
//! `esker mounts`: the mounts of this machine.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use esker_base::Result;
use esker_fuse::{ControlRequest, ask, mountpoints, status_of};

use crate::commands::mount::request_text;
use crate::context::CommandContext;
use crate::text;

/// List mounts, the processes that serve them, and their logs
///
/// For mounts of other users only the directory is shown.
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
        mountpoints()?.iter().try_for_each(|mountpoint| self.show(context, mountpoint))
    }

    fn show(&self, context: &CommandContext, mountpoint: &Path) -> Result<()> {
        let mut object = serde_json::Map::new();
        text::put_bytes(&mut object, "mountpoint", mountpoint.as_os_str().as_bytes());
        let mut line = text::printable(mountpoint.as_os_str().as_bytes());
        match status_of(mountpoint) {
            Ok(status) => {
                let log = log_of(status.pid);
                let shown = log.as_ref().map(|log| log.display().to_string());
                let set = status.set.as_ref().map_or(String::new(), |set| format!(" @{set}"));
                let log = shown.clone().map_or("no log".into(), |log| format!("log {log}"));
                line.push_str(&format!("  {}{set}  process {}  {log}", status.name, status.pid));
                object.insert("name".into(), status.name.into());
                object.insert("set".into(), status.set.into());
                object.insert("pid".into(), status.pid.into());
                object.insert("log".into(), shown.into());
                if self.statistics
                    && let Ok(answer) = ask(mountpoint, &ControlRequest::Statistics)
                {
                    line.push_str(&format!("  {}", request_text(&answer["requests"])));
                    object.insert("requests".into(), answer["requests"].clone());
                }
            }
            Err(error) => {
                line.push_str(&format!("  {error}"));
                object.insert("error".into(), error.to_string().into());
            }
        }
        if context.out.is_json() { context.out.json(object) } else { context.out.line(line) }
    }
}

/// The file to which the process logs errors, if the user may read that.
fn log_of(pid: u32) -> Option<PathBuf> {
    let log = std::fs::read_link(format!("/proc/{pid}/fd/2")).ok()?;
    log.is_file().then_some(log)
}

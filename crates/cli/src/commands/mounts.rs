//! `esker mounts`: the mounts of this machine.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::Args;
use esker_base::{Error, Result};
use esker_fuse::status_of;

use crate::context::Context;
use crate::text;

/// The kernel's list of what is mounted where.
const MOUNTS: &str = "/proc/self/mounts";
/// The type of our mounts there.
const TYPE: &[u8] = b"fuse.esker";

/// List mounts, who serves them, and where they log
///
/// Of mounts of other users only the directory is shown.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker mounts
  esker mounts --json | jq -r .log")]
pub struct Mounts {}

impl Mounts {
    /// Lists them.
    pub fn run(self, context: &Context) -> Result<()> {
        let failure = |error| Error::io(error, format!("read {MOUNTS}"));
        let mounts = std::fs::read(MOUNTS).map_err(failure)?;
        mountpoints(&mounts).iter().try_for_each(|mountpoint| show(context, mountpoint))
    }
}

fn show(context: &Context, mountpoint: &PathBuf) -> Result<()> {
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
        }
        Err(error) => {
            line.push_str(&format!("  {error}"));
            object.insert("error".into(), error.to_string().into());
        }
    }
    if context.out.is_json() { context.out.json(object) } else { context.out.line(line) }
}

/// The file to which the process says what goes wrong, if that is one that may be known.
fn log_of(pid: u32) -> Option<PathBuf> {
    let log = std::fs::read_link(format!("/proc/{pid}/fd/2")).ok()?;
    log.is_file().then_some(log)
}

/// The directories of our mounts in the kernel's list.
fn mountpoints(mounts: &[u8]) -> Vec<PathBuf> {
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let mountpoint = fields.nth(1)?;
        (fields.next()? == TYPE).then(|| OsString::from_vec(unescaped(mountpoint)).into())
    };
    mounts.split(|byte| *byte == b'\n').filter_map(of_line).collect()
}

/// A field of the list, in which spaces and the like are three octal digits behind a backslash.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found_in_the_list_of_the_kernel() {
        let list =
            b"/dev/a / ext4 rw 0 0\nesker:n /a\\040b\\134 fuse.esker rw 0 0\nx /c fuse.x rw 0 0\n";
        assert_eq!(mountpoints(list), [PathBuf::from("/a b\\")]);
        for odd in [&b"\\"[..], b"\\9", b"\\999", b"a\\04"] {
            assert_eq!(unescaped(odd), odd);
        }
    }
}

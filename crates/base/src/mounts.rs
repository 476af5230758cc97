// SPDX-License-Identifier: Apache-2.0
//! Mounts: the file systems that this process sees, from the kernel's list in
//! `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const LIST: &str = "/proc/self/mountinfo";

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedFileSystem {
    /// The directory on which it is mounted.
    pub mountpoint: PathBuf,
    /// Options of the mount, between commas.
    pub mount_options: String,
    /// Type of the file system, such as `ext4` or `fuse.NAME`.
    pub kind: String,
    /// Device or name of what is mounted.
    pub source: OsString,
    /// Options of the file system, between commas.
    pub options: String,
}

impl MountedFileSystem {
    /// Lists what is mounted, in the order of mounting: of several at one directory the last is
    /// visible.
    ///
    /// # Errors
    /// Those of reading the kernel's list.
    pub fn all() -> std::io::Result<Vec<Self>> {
        let list = std::fs::read(LIST)
            .map_err(|error| std::io::Error::new(error.kind(), format!("read {LIST}: {error}")))?;
        Ok(list.split(|byte| *byte == b'\n').filter_map(Self::of_line).collect())
    }

    /// Parses a line of the kernel's list; `None` if it is none.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mountpoint = fields.nth(4)?;
        let mount_options = fields.next()?;
        // Optional fields end with a lone minus.
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, source) = (fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or_default();
        let text = |field| String::from_utf8_lossy(&unescaped(field)).into_owned();
        Some(Self {
            mountpoint: OsString::from_vec(unescaped(mountpoint)).into(),
            mount_options: text(mount_options),
            kind: text(kind),
            source: OsString::from_vec(unescaped(source)),
            options: text(options),
        })
    }
}

/// Returns `field` without the escapes (`\040`) that the kernel uses for blanks and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_with_and_without_optional_fields() {
        let line = b"98 1 0:50 / /mnt/a\\040b rw,noatime shared:5 - fuse.x x:\\134y rw,user_id=7";
        let mount = MountedFileSystem::of_line(line).expect("a line of the list");
        assert_eq!(mount.mountpoint, PathBuf::from("/mnt/a b"));
        assert_eq!((&*mount.mount_options, &*mount.options), ("rw,noatime", "rw,user_id=7"));
        assert_eq!((&*mount.kind, mount.source.to_str()), ("fuse.x", Some("x:\\y")));
        let plain = MountedFileSystem::of_line(b"98 1 0:50 / /mnt rw - proc proc");
        assert_eq!(plain.expect("a line without options").options, "");
        assert_eq!(MountedFileSystem::of_line(b"22 1 0:5 / /mnt"), None);
        assert_eq!(MountedFileSystem::of_line(b"22 1 0:5 / /mnt rw shared:5"), None);
        assert_eq!(MountedFileSystem::of_line(b""), None);
        assert_eq!(unescaped(b"\\134\\04\\999"), b"\\\\04\\999");
    }

    #[test]
    fn this_process_sees_its_root() {
        let mounts = MountedFileSystem::all().expect("the kernel's list");
        assert!(mounts.iter().any(|mount| mount.mountpoint.as_os_str() == "/"));
    }
}

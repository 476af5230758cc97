// SPDX-License-Identifier: Apache-2.0
//! Failures of system calls, as errors that name the path and say what to do next.

use std::path::Path;

use rustix::io::Errno;

use crate::{Error, Kind};

/// Returns the error for an `action` ("write", "list") on `path` that failed with `errno`.
pub(super) fn failed(action: &str, path: &Path, errno: Errno) -> Error {
    let io = std::io::Error::from(errno);
    let kind = match errno {
        Errno::LOOP => Kind::Denied,
        _ => Kind::of_io(&io),
    };
    let place = format!("{action} {}", path.display());
    let context = match advice(errno) {
        Some(advice) => format!("{place}: {advice}"),
        None => place,
    };
    Error::new(kind, context).with_source(io)
}

/// Returns what a user can do about `errno`, if the bare message does not say it.
fn advice(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::NOSPC => "no space left: free some and retry",
        Errno::DQUOT => "the quota is used up: free some or ask for more, and retry",
        Errno::ROFS => "the file system is read-only: mount it writable or use another store",
        Errno::ACCESS | Errno::PERM => "not allowed: check owner and mode of the directories",
        Errno::MFILE => "too many open files: raise `ulimit -n`",
        Errno::NFILE => "the machine has too many open files: close some and retry",
        Errno::LOOP => {
            "symbolic links inside a store are not followed: replace the link with its target"
        }
        Errno::NOTDIR => "an object and a directory cannot have the same name",
        Errno::STALE => "the server lost the file: remount the file system and retry",
        Errno::IO => "the device failed: check the kernel's log before trusting the store again",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kind_place_and_advice() {
        for (errno, kind, word) in [
            (Errno::NOSPC, Kind::NoSpace, "free some"),
            (Errno::DQUOT, Kind::NoSpace, "quota"),
            (Errno::ROFS, Kind::ReadOnly, "mount it writable"),
            (Errno::ACCESS, Kind::Denied, "check owner and mode"),
            (Errno::PERM, Kind::Denied, "check owner and mode"),
            (Errno::LOOP, Kind::Denied, "not followed"),
            (Errno::MFILE, Kind::TooManyOpenFiles, "ulimit -n"),
            (Errno::NFILE, Kind::TooManyOpenFiles, "close some"),
            (Errno::NOENT, Kind::NotFound, "read /store/x"),
        ] {
            let error = failed("read", Path::new("/store/x"), errno);
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            assert!(text.starts_with("read /store/x") && text.contains(word), "{text}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Names and paths: bytes between slashes, as in POSIX.

use esker_base::{Error, Kind, Result};

/// Maximum bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Upper bound, exclusive, of the bytes of a path.
pub const PATH_BYTES_MAX: usize = 4096;
/// Bytes that end a name.
pub(crate) const SEPARATORS: [u8; 2] = [b'/', 0];
/// Maximum number of symbolic links that a path may traverse.
pub const SYMLINKS_MAX: usize = 40;

/// Formats a name or path for an error.
#[must_use]
pub fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails unless `name` can name a file in a directory.
///
/// # Errors
/// `TooLarge` over [`NAME_BYTES_MAX`]; `Invalid` if it is empty, `.` or `..`, or contains a slash
/// or a zero byte.
#[inline]
pub fn check_name(name: &[u8]) -> Result<()> {
    let [slash, zero] = SEPARATORS;
    match is_name_without_separators(name) && memchr::memchr2(slash, zero, name).is_none() {
        true => Ok(()),
        false => Err(refusal(name)),
    }
}

/// True if `name`, which has none of the [`SEPARATORS`], can name a file in a directory.
#[inline]
pub(crate) fn is_name_without_separators(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && !(name.len() <= 2 && matches!(name, b"" | b"." | b".."))
}

/// The error of [`check_name`] for a name that it refuses.
#[cold]
fn refusal(name: &[u8]) -> Error {
    if name.len() <= NAME_BYTES_MAX {
        return Error::new(Kind::Invalid, format!("{:?} cannot be a file's name", show(name)));
    }
    let (start, length) = (show(&name[..32]), name.len());
    let context =
        format!("{start}…: a name of {length} bytes; at most {NAME_BYTES_MAX} are possible");
    Error::new(Kind::TooLarge, context)
}

/// Returns the components of `path` without empty ones and `.`, after checking its length.
///
/// # Errors
/// `TooLarge` for a path of [`PATH_BYTES_MAX`] bytes or more, or an overlong component; `Invalid`
/// for a zero byte.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.len() >= PATH_BYTES_MAX {
        let context = format!(
            "{}…: a path of {} bytes; less than {PATH_BYTES_MAX} are possible",
            show(&path[..32]),
            path.len()
        );
        return Err(Error::new(Kind::TooLarge, context));
    }
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts
        .map(|part| if part == b".." { Ok(part) } else { check_name(part).map(|()| part) })
        .collect()
}

/// Splits `path` into the directory part and the last component.
///
/// # Errors
/// As [`components`]; `Invalid` if the path has no last component that names a file.
pub fn split_last(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let start = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = &trimmed[start..];
    if name.is_empty() {
        let what = "/ is the root directory, which cannot be made, replaced, moved or removed";
        return Err(Error::new(Kind::Invalid, what));
    }
    check_name(name)?;
    Ok((&trimmed[..start], name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_or_zero_is_found_wherever_it_is() {
        for length in 1..40 {
            for at in 0..length {
                for other in [b'.', b'a', 0x01, 0x2e, 0x30, 0x80, 0xaf, 0xff] {
                    let mut name = vec![other; length];
                    assert_eq!(check_name(&name).is_ok(), length > 2 || other != b'.');
                    for byte in [b'/', 0] {
                        name[at] = byte;
                        assert!(check_name(&name).is_err(), "{byte} at {at} of {length}");
                    }
                }
            }
        }
    }
}

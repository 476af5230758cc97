//! Names and paths: bytes between slashes, as POSIX has them.

use esker_base::{Error, Kind, Result};

/// A name takes at most this many bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// A path takes less than this many bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// A path leads through at most this many symbolic links.
pub const SYMLINKS_MAX: usize = 40;

/// Shows a name or path in an error.
pub(crate) fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails unless `name` can name a file in a directory.
///
/// # Errors
/// `TooLarge` over [`NAME_BYTES_MAX`]; `Invalid` if it is empty, `.` or `..`, or holds a slash or
/// a zero byte.
#[inline]
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        let context = format!(
            "{}…: a name of {} bytes; at most {NAME_BYTES_MAX} are possible",
            show(&name[..32]),
            name.len()
        );
        return Err(Error::new(Kind::TooLarge, context));
    }
    let plain = !name.is_empty() && name != b"." && name != b"..";
    if plain && !name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Ok(());
    }
    Err(Error::new(Kind::Invalid, format!("{:?} cannot be a file's name", show(name))))
}

/// The components of `path` without empty ones and `.`, after checking its length.
///
/// # Errors
/// `TooLarge` from [`PATH_BYTES_MAX`] on or for a component that is; `Invalid` for a zero byte.
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

/// The directory part and the last component of `path`.
///
/// # Errors
/// As [`components`]; `Invalid` if the path has no last component that names a file.
pub fn split_last(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let start = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = &trimmed[start..];
    check_name(name)?;
    Ok((&trimmed[..start], name))
}

//! Entry: an indexed directory as a part of a namespace, read by path, one file a key.
//!
//! A name in it is a key: `0x` and hexadecimal digits, of which there are two a byte; or, where all
//! keys have eight bytes, 16 digits without `0x`; anything else is the bytes themselves.
//! Source: DeltaFS thesis §5.2.4.

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_fs::identity::READ;
use esker_fs::indexed::prefix_of;
use esker_fs::inode::Inode;
use esker_fs::namespace::{Follow, Namespace};

use crate::hash::KEY_BYTES_MAX;
use crate::reader::Reader;
use crate::shape::Shape;

/// An indexed directory that a path leads to or through.
#[derive(Debug)]
pub struct IndexedEntry {
    /// The entry.
    pub inode: Inode,
    /// What the names of its objects begin with.
    pub prefix: String,
    /// What follows its name in the path: a key's name; empty if the path leads to the directory.
    pub rest: Vec<u8>,
}

/// The indexed directory that `path` leads to or through, if any.
///
/// # Errors
/// `Denied` if it may not be read; what looking up fails with. A path that leads elsewhere, or
/// nowhere, is no error here.
pub fn find(view: &Namespace, path: &[u8]) -> Result<Option<IndexedEntry>> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let slash = path.iter().rposition(|&byte| byte == b'/');
    let of_itself = (path, &b""[..]);
    let of_parent = slash.map(|slash| (&path[..slash], &path[slash + 1..]));
    for (place, rest) in [Some(of_itself), of_parent].into_iter().flatten() {
        let inode = match view.stat(place, Follow::Yes) {
            Ok(inode) => inode,
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotADirectory) => continue,
            Err(error) => return Err(error),
        };
        if let Some(prefix) = prefix_of(&inode) {
            view.identity().check(READ, &inode, place)?;
            return Ok(Some(IndexedEntry { inode, prefix, rest: rest.to_vec() }));
        }
    }
    Ok(None)
}

impl IndexedEntry {
    /// Opens it for reading.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open(&self, store: &SharedStore, cache_bytes: u64) -> Result<Reader> {
        Reader::open(store, &self.prefix, cache_bytes)
    }
}

/// The key that `name` stands for in a directory of `shape`.
///
/// # Errors
/// `Invalid` for hexadecimal digits that are none, `TooLarge` for a name that is no key.
pub fn key_of_name(name: &[u8], shape: Shape) -> Result<Vec<u8>> {
    let eight = matches!(shape, Shape::Fixed { key_bytes: 8, .. });
    let bare = eight && name.len() == 16 && name.iter().all(u8::is_ascii_hexdigit);
    let key = match name.strip_prefix(b"0x") {
        Some(digits) => parse_hex(digits)?,
        None if bare => parse_hex(name)?,
        None => name.to_vec(),
    };
    let fits = match shape {
        Shape::Fixed { key_bytes, .. } => key.len() == usize::from(key_bytes),
        Shape::Variable => !key.is_empty() && key.len() <= KEY_BYTES_MAX,
    };
    if fits {
        return Ok(key);
    }
    let name = String::from_utf8_lossy(name);
    let what = match shape {
        Shape::Fixed { key_bytes, .. } => format!(
            "{name}: keys of this directory have {key_bytes} bytes, as text or as 0x and {} digits",
            2 * u32::from(key_bytes)
        ),
        Shape::Variable => format!("{name}: keys have 1 to {KEY_BYTES_MAX} bytes"),
    };
    Err(Error::new(Kind::Invalid, what))
}

/// The name under which `key` is shown.
#[must_use]
pub fn name_of_key(key: &[u8], shape: Shape) -> String {
    let eight = matches!(shape, Shape::Fixed { key_bytes: 8, .. });
    let plain = key.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'/');
    if plain && !key.starts_with(b"0x") && !eight {
        return String::from_utf8_lossy(key).into_owned();
    }
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    if eight { digits } else { format!("0x{digits}") }
}

fn parse_hex(digits: &[u8]) -> Result<Vec<u8>> {
    let bad = || {
        let digits = String::from_utf8_lossy(digits);
        Error::new(Kind::Invalid, format!("0x{digits}: two hexadecimal digits for each byte"))
    };
    let text = std::str::from_utf8(digits).map_err(|_| bad())?;
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(bad());
    }
    let pairs = (0..text.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_agree() {
        let eight = Shape::Fixed { key_bytes: 8, value_bytes: 4 };
        let key = key_of_name(b"0000000000000042", eight).expect("digits");
        assert_eq!(key, 0x42_u64.to_be_bytes());
        assert_eq!(name_of_key(&key, eight), "0000000000000042");
        assert_eq!(key_of_name(b"abcdefgh", eight).expect("bytes"), b"abcdefgh");
        assert_eq!(key_of_name(b"0x6162", Shape::Variable).expect("digits"), b"ab");
        assert_eq!(key_of_name(b"ab", Shape::Variable).expect("bytes"), b"ab");
        assert_eq!(name_of_key(b"ab", Shape::Variable), "ab");
        assert_eq!(name_of_key(b"a\0", Shape::Variable), "0x6100");
        assert_eq!(name_of_key(b"0x", Shape::Variable), "0x3078");
        for bad in [&b"0x1"[..], b"0xzz", b"", &[b'a'; 256]] {
            assert!(key_of_name(bad, Shape::Variable).is_err());
        }
        assert!(key_of_name(b"42", eight).is_err());
    }
}

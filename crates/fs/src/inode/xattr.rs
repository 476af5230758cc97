// SPDX-License-Identifier: Apache-2.0
//! Extended attributes: names and values of one inode, encoded as one string, sorted by name.
//!
//! Layout: docs/format/inode.md, "Extended attributes". This file is its only encoder and decoder.

use std::collections::BTreeMap;

use esker_base::wire::{WireDamage, WireInput, put_bytes};
use esker_base::{Error, Kind, Result};

/// Maximum bytes of all attributes of an inode.
pub const XATTR_BYTES_MAX: usize = 128 << 10;
/// Maximum bytes of a name, as in Linux.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of a value, as in Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Decodes attributes.
///
/// # Errors
/// `Corrupt`.
pub fn decode(bytes: &[u8]) -> Result<Xattrs> {
    let read = || -> Result<Xattrs, WireDamage> {
        let mut input = WireInput::new(bytes);
        let mut xattrs = Xattrs::new();
        while input.left() > 0 {
            let name = input.bytes(XATTR_NAME_BYTES_MAX, "an attribute's name")?;
            let value = input.bytes(XATTR_VALUE_BYTES_MAX, "an attribute's value")?;
            xattrs.insert(name.to_vec(), value.to_vec());
        }
        Ok(xattrs)
    };
    read().map_err(|damage| damage.of("extended attributes", 0))
}

/// Encodes attributes.
///
/// # Errors
/// `TooLarge` if a name, a value or all together are over their limits.
pub fn encode(xattrs: &Xattrs) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for (name, value) in xattrs {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            let context = format!(
                "attribute name of {} bytes; 1 to {XATTR_NAME_BYTES_MAX} are possible",
                name.len()
            );
            return Err(Error::new(Kind::TooLarge, context));
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            let context = format!(
                "attribute value of {} bytes; at most {XATTR_VALUE_BYTES_MAX} are possible",
                value.len()
            );
            return Err(Error::new(Kind::TooLarge, context));
        }
        put_bytes(&mut out, name);
        put_bytes(&mut out, value);
    }
    if out.len() > XATTR_BYTES_MAX {
        let context =
            format!("{} bytes of attributes; at most {XATTR_BYTES_MAX} are possible", out.len());
        return Err(Error::new(Kind::TooLarge, context));
    }
    Ok(out)
}

// SPDX-License-Identifier: Apache-2.0
//! Root: locations of the epochs of a finished index log, and the footer that locates the root.
//! Layout: docs/format/imd.md, "Root".

use std::ops::Range;

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_base::{Error, Result};

use crate::checksum::LogChecksum;

/// Bytes of the footer, which ends a finished index log.
pub const FOOTER_BYTES: u64 = 24;

/// Maximum bytes of a head.
const HEAD_BYTES_MAX: usize = 256;

const FOOTER_MAGIC: &[u8; 4] = b"IEND";

/// Locations of the epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRoot {
    /// The encoded head of the log, so that a reader does not need to read that too.
    pub head: Vec<u8>,
    /// The frame of each epoch, header included.
    pub epochs: Vec<Range<u64>>,
    /// Bytes of the data log.
    pub data_bytes: u64,
}

impl IndexRoot {
    /// Appends the encoded root.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.head.len() <= HEAD_BYTES_MAX, "readers expect a head of at most 256 bytes");
        put_bytes(out, &self.head);
        put_varint(out, self.data_bytes);
        put_varint(out, self.epochs.len() as u64);
        let mut before = 0;
        for epoch in &self.epochs {
            put_varint(out, epoch.start - before);
            put_varint(out, epoch.end - epoch.start);
            before = epoch.end;
        }
    }

    /// Decodes the root in `bytes`; `index_bytes` bytes of the log precede it.
    ///
    /// # Errors
    /// Damage if `bytes` are not a root.
    pub fn decode(bytes: &[u8], index_bytes: u64) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        let head = input.bytes(HEAD_BYTES_MAX, "a head")?.to_vec();
        let data_bytes = input.varint()?;
        let count = input.varint_max(input.left() / 2, "two bytes for each epoch")?;
        let mut epochs = Vec::with_capacity(count);
        let mut before = 0_u64;
        for _ in 0..count {
            let start = before.checked_add(input.varint()?);
            let end = start.and_then(|start| start.checked_add(input.varint().ok()?));
            let (Some(start), Some(end)) = (start, end.filter(|&end| end <= index_bytes)) else {
                return Err(input.damage("epochs within the index log"));
            };
            epochs.push(start..end);
            before = end;
        }
        input.end()?;
        Ok(Self { head, epochs, data_bytes })
    }
}

/// Appends the footer for `offset` of `log`; `root` is the range of the root's frame.
pub fn encode_footer(root: &Range<u64>, log: LogChecksum, offset: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&root.start.to_le_bytes());
    out.extend_from_slice(&root.end.to_le_bytes());
    out.extend_from_slice(FOOTER_MAGIC);
    log.seal(out, start, offset);
}

/// The range of the root's frame, from the footer in `bytes` at `offset` of `log`; `None` if they
/// are not a footer.
///
/// # Errors
/// `Corrupt` if the footer belongs elsewhere.
pub fn decode_footer(
    bytes: &[u8],
    log: LogChecksum,
    offset: u64,
    object: &str,
) -> Result<Option<Range<u64>>> {
    let Some(footer) = bytes.as_array::<24>() else { return Ok(None) };
    let (covered, sum) = footer.split_at(20);
    if sum != log.of(covered, offset).to_le_bytes() || !covered.ends_with(FOOTER_MAGIC) {
        return Ok(None);
    }
    let mut input = WireInput::new(covered);
    let (start, end) = (input.u64(), input.u64());
    match (start, end) {
        (Ok(start), Ok(end)) if start < end && end == offset => Ok(Some(start..end)),
        _ => Err(Error::corrupt(object, offset, "a footer behind no root")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::LogKind;

    #[test]
    fn roots_round_trip() {
        let root =
            IndexRoot { head: vec![1, 2], epochs: vec![10..20, 20..50, 90..91], data_bytes: 12 };
        let mut out = Vec::new();
        root.encode(&mut out);
        assert_eq!(IndexRoot::decode(&out, 91), Ok(root.clone()));
        assert!(IndexRoot::decode(&out, 90).is_err());
        for cut in 0..out.len() {
            assert!(IndexRoot::decode(&out[..cut], 91).is_err());
        }
    }

    #[test]
    fn footers_round_trip() {
        let log = LogChecksum::new(1, 2, LogKind::Index);
        let mut out = Vec::new();
        encode_footer(&(5..9), log, 9, &mut out);
        assert_eq!(out.len() as u64, FOOTER_BYTES);
        assert_eq!(decode_footer(&out, log, 9, "log").expect("footer"), Some(5..9));
        assert_eq!(decode_footer(&out, log, 8, "log").expect("elsewhere"), None);
        assert_eq!(decode_footer(&out, LogChecksum::HEAD, 9, "log").expect("another log"), None);
        assert_eq!(decode_footer(&out[1..], log, 9, "log").expect("cut"), None);
    }
}

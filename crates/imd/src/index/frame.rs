// SPDX-License-Identifier: Apache-2.0
//! Frame: a piece of an index log that states its kind and length, so that a log without a footer
//! can be read from its start.
//!
//! ```text
//! kind (4) | payload bytes (8) | checksum of the payload (4) | checksum of these 16 bytes (4)
//! ```
//! Checksums are those of the log at the frame's offset. An index group's frame has a payload
//! checksum of 0, since its slots have their own.

use esker_base::{Error, Result};

use crate::checksum::LogChecksum;

/// Bytes in front of a payload.
pub const HEADER_BYTES: usize = 20;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Identity of the log.
    Head,
    /// Schema of the directory's keys and values.
    Schema,
    /// Slots of an epoch's tables.
    IndexGroup,
    /// The end of an epoch.
    Epoch,
    /// Copies of the frames of all epochs, adjacent so that one read fetches them.
    Copies,
    /// Locations of the epochs.
    Root,
}

impl FrameKind {
    const ALL: [(Self, [u8; 4]); 6] = [
        (Self::Head, *b"IHED"),
        (Self::Schema, *b"ISCH"),
        (Self::IndexGroup, *b"ISEG"),
        (Self::Epoch, *b"IEPO"),
        (Self::Copies, *b"ICOP"),
        (Self::Root, *b"IROO"),
    ];

    fn letters(self) -> [u8; 4] {
        let found = Self::ALL.iter().find(|kind| kind.0 == self);
        found.expect("every kind is listed").1
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFrameHeader {
    /// Kind of the payload.
    pub kind: FrameKind,
    /// Bytes of its payload.
    pub bytes: u64,
    /// The checksum of its payload.
    pub checksum: u32,
}

impl IndexFrameHeader {
    /// The header of an index group of `bytes` bytes.
    #[must_use]
    pub const fn of_index_group(bytes: u64) -> Self {
        Self { kind: FrameKind::IndexGroup, bytes, checksum: 0 }
    }

    /// Appends the header of a frame at `offset`.
    pub fn encode(&self, log: LogChecksum, offset: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.kind.letters());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
        log.seal(out, start, offset);
    }

    /// Decodes the header in `bytes` at `offset`; `None` if it is truncated or damaged.
    #[must_use]
    pub fn decode(log: LogChecksum, bytes: &[u8], offset: u64) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let (covered, sum) = header.split_last_chunk::<4>()?;
        if log.of(covered, offset) != u32::from_le_bytes(*sum) {
            return None;
        }
        let letters = covered.first_chunk::<4>()?;
        let kind = FrameKind::ALL.iter().find(|kind| kind.1 == *letters)?.0;
        let bytes = u64::from_le_bytes(*covered[4..].first_chunk()?);
        Some(Self { kind, bytes, checksum: u32::from_le_bytes(*covered[12..].first_chunk()?) })
    }

    /// True if `payload` belongs to this frame at `offset`.
    #[must_use]
    pub fn fits(&self, log: LogChecksum, payload: &[u8], offset: u64) -> bool {
        payload.len() as u64 == self.bytes && log.of(payload, offset) == self.checksum
    }
}

/// Appends a frame of `payload` for `offset` of `log`.
pub fn encode(kind: FrameKind, payload: &[u8], log: LogChecksum, offset: u64, out: &mut Vec<u8>) {
    let header =
        IndexFrameHeader { kind, bytes: payload.len() as u64, checksum: log.of(payload, offset) };
    header.encode(log, offset, out);
    out.extend_from_slice(payload);
}

/// Decodes the frame of `kind` in `bytes`, which are at `offset` of `log`, the object `object`;
/// returns its payload.
///
/// # Errors
/// `Corrupt` if they are not such a frame.
pub fn decode<'a>(
    kind: FrameKind,
    bytes: &'a [u8],
    log: LogChecksum,
    offset: u64,
    object: &str,
) -> Result<&'a [u8]> {
    let header = IndexFrameHeader::decode(log, bytes, offset);
    let payload = bytes.get(HEADER_BYTES..).unwrap_or_default();
    match header {
        Some(header) if header.kind == kind && header.fits(log, payload, offset) => Ok(payload),
        _ => Err(Error::corrupt(object, offset, format!("no whole frame of {kind:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::LogKind;

    #[test]
    fn frames_round_trip_and_any_flip_shows() {
        let log = LogChecksum::new(1, 2, LogKind::Index);
        let mut out = Vec::new();
        encode(FrameKind::Epoch, b"payload", log, 77, &mut out);
        assert!(decode(FrameKind::Epoch, &out, LogChecksum::HEAD, 77, "log").is_err());
        assert_eq!(decode(FrameKind::Epoch, &out, log, 77, "log").expect("whole"), b"payload");
        assert!(decode(FrameKind::Root, &out, log, 77, "log").is_err());
        assert!(decode(FrameKind::Epoch, &out, log, 78, "log").is_err());
        for cut in 0..out.len() {
            assert!(decode(FrameKind::Epoch, &out[..cut], log, 77, "log").is_err());
        }
        for bit in 0..out.len() * 8 {
            let mut flipped = out.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(FrameKind::Epoch, &flipped, log, 77, "log").is_err());
        }
    }
}

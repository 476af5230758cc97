// SPDX-License-Identifier: Apache-2.0
//! Frame: one request of many items, or its answer. Layout: docs/format/live.md, "Frames". This
//! file is its only encoder and decoder.
//!
//! ```text
//! 0 payload bytes u32 | 4 verb u8 | 5 flags u8 | 6 items u16 | 8 request number u64
//! 16 window u32 | 20 CRC-32C u32 of 0..20 and the payload | 24 payload
//! ```
//! Frames are decoded in place: the payload is borrowed from the bytes that arrived.

use std::ops::Range;

use esker_base::{Error, Result};

use super::verb::Verb;

/// Bytes of the header, before the payload.
pub const FRAME_HEADER_BYTES: usize = 24;

/// Maximum bytes of a frame: those of a write, and a little more.
pub const FRAME_BYTES_MAX: usize = (1 << 20) + (4 << 10);

/// Properties of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlags {
    /// In a request: the server must answer only once its changes survive power loss.
    pub is_durable: bool,
    /// In an answer: the request was not carried out, because the server does not have the
    /// directory open. The client opens its path and repeats the request.
    pub lacks_directory: bool,
    /// In an answer: the change was not carried out, because an earlier one of the client lacks its
    /// directory. The client repeats it after that one.
    pub follows_lack: bool,
    /// In a request: it was sent before, on another connection.
    pub is_repeated: bool,
}

/// A frame without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of request that it makes or answers.
    pub verb: Verb,
    /// Properties.
    pub flags: FrameFlags,
    /// Number of items in the payload.
    pub items: u16,
    /// Number of the request, counted by the client from 1; 0 during the handshake.
    pub number: u64,
    /// The number of requests, up to this one, whose answers the client may not have yet.
    pub window: u32,
}

impl FrameHeader {
    /// The header of request `number` with one item.
    #[must_use]
    pub fn new(verb: Verb, number: u64) -> Self {
        Self { verb, flags: FrameFlags::default(), items: 1, number, window: 1 }
    }
}

impl FrameFlags {
    fn code(self) -> u8 {
        u8::from(self.is_durable)
            | u8::from(self.lacks_directory) << 1
            | u8::from(self.follows_lack) << 2
            | u8::from(self.is_repeated) << 3
    }

    fn of_code(code: u8) -> Option<Self> {
        (code < 16).then_some(Self {
            is_durable: code & 1 != 0,
            lacks_directory: code & 2 != 0,
            follows_lack: code & 4 != 0,
            is_repeated: code & 8 != 0,
        })
    }
}

/// Appends the room for a header to `out`; the payload follows. Returns the position of the frame.
pub fn start_frame(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.resize(at + FRAME_HEADER_BYTES, 0);
    at
}

/// Completes the frame at `at`, whose payload is the rest of `out`.
///
/// # Panics
/// If the frame is longer than [`FRAME_BYTES_MAX`].
pub fn finish_frame(out: &mut [u8], at: usize, header: &FrameHeader) {
    let frame = &mut out[at..];
    assert!(frame.len() <= FRAME_BYTES_MAX, "a frame of {} bytes", frame.len());
    let payload_bytes = (frame.len() - FRAME_HEADER_BYTES) as u32;
    frame[0..4].copy_from_slice(&payload_bytes.to_le_bytes());
    frame[4] = header.verb as u8;
    frame[5] = header.flags.code();
    frame[6..8].copy_from_slice(&header.items.to_le_bytes());
    frame[8..16].copy_from_slice(&header.number.to_le_bytes());
    frame[16..20].copy_from_slice(&header.window.to_le_bytes());
    let checksum = checksum(frame);
    frame[20..24].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..20]), &frame[FRAME_HEADER_BYTES..])
}

/// Splits the first frame off `bytes`, which arrived from `peer`. Returns its header and the range
/// of its payload, at whose end the next frame begins; `None` until all of it has arrived.
///
/// # Errors
/// `Corrupt` if the bytes are not a frame of at most `bytes_max`; those after them are then
/// undecodable.
pub fn split_frame(
    bytes: &[u8],
    bytes_max: usize,
    peer: &str,
) -> Result<Option<(FrameHeader, Range<usize>)>> {
    let Some(head) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(None) };
    let [l0, l1, l2, l3, verb, flags, i0, i1, ..] = *head;
    let end = FRAME_HEADER_BYTES + u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if end > bytes_max {
        return Err(Error::corrupt(
            peer,
            0,
            format!("a frame of {end} bytes, {bytes_max} allowed"),
        ));
    }
    let (verb, flags) = match (Verb::of_code(verb), FrameFlags::of_code(flags)) {
        (Some(verb), Some(flags)) => (verb, flags),
        _ => return Err(Error::corrupt(peer, 4, format!("verb {verb} with flags {flags}"))),
    };
    let Some(frame) = bytes.get(..end) else { return Ok(None) };
    let expected = u32::from_le_bytes(head[20..24].try_into().expect("four bytes"));
    let found = checksum(frame);
    if expected != found {
        let what = format!("checksum {expected:08x} expected, {found:08x} found");
        return Err(Error::corrupt(peer, 20, what));
    }
    let header = FrameHeader {
        verb,
        flags,
        items: u16::from_le_bytes([i0, i1]),
        number: u64::from_le_bytes(head[8..16].try_into().expect("eight bytes")),
        window: u32::from_le_bytes(head[16..20].try_into().expect("four bytes")),
    };
    Ok(Some((header, FRAME_HEADER_BYTES..end)))
}

#[cfg(test)]
mod tests {
    use esker_base::Kind;

    use super::*;

    fn frame(payload: &[u8]) -> (FrameHeader, Vec<u8>) {
        let flags = FrameFlags { is_durable: true, ..FrameFlags::default() };
        let header = FrameHeader { verb: Verb::Create, flags, items: 2, number: 7, window: 3 };
        let mut out = Vec::new();
        let at = start_frame(&mut out);
        out.extend_from_slice(payload);
        finish_frame(&mut out, at, &header);
        (header, out)
    }

    /// The bytes of docs/format/live.md.
    #[test]
    fn golden() {
        let hex: String = frame(b"abc").1.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "03000000200102000700000000000000030000007ccc92d4616263");
    }

    #[test]
    fn frames_come_back_from_a_stream() {
        let (header, first) = frame(b"first");
        let (_, second) = frame(&[1; 9000]);
        let stream = [&first[..], &second].concat();
        let (found, payload) = split_frame(&stream, FRAME_BYTES_MAX, "x").unwrap().unwrap();
        assert_eq!((found, &stream[payload.clone()]), (header, &b"first"[..]));
        let rest = &stream[payload.end..];
        let (_, payload) = split_frame(rest, FRAME_BYTES_MAX, "x").unwrap().unwrap();
        assert_eq!(&rest[payload], &[1; 9000]);
        for length in 0..first.len() {
            assert_eq!(split_frame(&first[..length], FRAME_BYTES_MAX, "x").unwrap(), None);
        }
    }

    /// A flip in the length may leave a reader waiting for more; any other is noticed.
    #[test]
    fn every_flip_is_noticed_or_waits() {
        let (_, whole) = frame(b"some payload");
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match split_frame(&flipped, FRAME_BYTES_MAX, "x") {
                Ok(found) => assert!(found.is_none() && bit < 32, "bit {bit}"),
                Err(error) => assert_eq!(error.kind(), Kind::Corrupt),
            }
        }
    }

    #[test]
    fn long_frames_are_refused_by_their_header() {
        let mut bytes = frame(b"").1;
        bytes[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = split_frame(&bytes, FRAME_BYTES_MAX, "a client").unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("a client"), "{error}");
    }
}

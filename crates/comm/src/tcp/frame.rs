// SPDX-License-Identifier: Apache-2.0
//! Frame: one message, or control information of a connection, on a TCP stream. Layout:
//! docs/format/message.md, "Frames". This file is its only encoder and decoder.
//!
//! ```text
//! 0 payload bytes u32 | 4 kind u8 | 5 0 u8 | 6 channel u16 | 8 CRC-32C u32 of 0..8 and the payload
//! 12 payload
//! ```
//! Invariant: a decoder allocates at most [`AHEAD_BYTES_MAX`] beyond the bytes that have arrived,
//! no matter which length a header claims.

use esker_base::{Error, Result};

use crate::Channel;
use crate::transport::MESSAGE_BYTES_MAX;

/// Bytes of the header, before the payload.
pub(super) const HEADER_BYTES: usize = 12;

/// Bytes allocated for a payload before it arrives: a usual batch of records, so that its memory
/// can be reused for the next batch.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpFrameKind {
    /// Sender, receiver and channel of a new connection; its first frame.
    Hello,
    /// The opener's proof was valid; the last frame of a handshake.
    Welcome,
    /// A message.
    Message,
    /// A rank is lost. The payload is its number in 4 bytes.
    Lost,
    /// The sender leaves the job, and sends nothing more.
    Goodbye,
    /// The answer to a hello.
    Challenge,
    /// The opener's answer to a challenge.
    Proof,
}

impl TcpFrameKind {
    const ALL: [Self; 7] = [
        Self::Hello,
        Self::Welcome,
        Self::Message,
        Self::Lost,
        Self::Goodbye,
        Self::Challenge,
        Self::Proof,
    ];

    pub fn code(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Message => 3,
            Self::Lost => 4,
            Self::Goodbye => 5,
            Self::Challenge => 6,
            Self::Proof => 7,
        }
    }
}

/// A decoded frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TcpFrame {
    pub kind: TcpFrameKind,
    pub channel: Channel,
    pub payload: Vec<u8>,
}

/// The header of a frame with `payload`.
pub(super) fn header(kind: TcpFrameKind, channel: Channel, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(payload.len()).expect("a message is below 4 GiB");
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&length.to_le_bytes());
    header[4] = kind.code();
    header[6..8].copy_from_slice(&channel.0.to_le_bytes());
    let checksum = checksum(&header, payload);
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn checksum(header: &[u8; HEADER_BYTES], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..8]), payload)
}

/// A decoded header.
#[derive(Clone, Copy, Debug)]
struct TcpFrameHeader {
    kind: TcpFrameKind,
    channel: Channel,
    length: usize,
}

/// Splits a byte stream that arrives in pieces of any size into frames.
#[derive(Debug)]
pub(super) struct TcpFrameDecoder {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    head: Option<TcpFrameHeader>,
    payload: Vec<u8>,
    payload_bytes_max: usize,
    /// Offset in the stream of the current frame.
    offset: u64,
}

impl TcpFrameDecoder {
    /// A decoder that refuses payloads over `payload_bytes_max`.
    pub fn new(payload_bytes_max: usize) -> Self {
        Self {
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            head: None,
            payload: Vec::new(),
            payload_bytes_max,
            offset: 0,
        }
    }

    /// Admits messages: the sender is authenticated from now on.
    pub fn trust(&mut self) {
        self.payload_bytes_max = MESSAGE_BYTES_MAX;
    }

    /// Length of the payload of the current, partial frame; 0 between frames.
    pub fn pending_bytes(&self) -> usize {
        self.head.map_or(0, |head| head.length)
    }

    /// Bytes that the current, partial frame still needs; `None` between frames.
    pub fn missing_bytes(&self) -> Option<usize> {
        match self.head {
            Some(head) => Some(head.length - self.payload.len()),
            None if self.header_bytes > 0 => Some(HEADER_BYTES - self.header_bytes),
            None => None,
        }
    }

    /// Consumes bytes from the front of `bytes`, up to the end of a frame; returns it if it is
    /// complete.
    ///
    /// # Errors
    /// `Corrupt` if they are not a frame; the rest of the stream is then undecodable.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<TcpFrame>> {
        let head = match self.head {
            Some(head) => head,
            None => {
                let (taken, rest) =
                    bytes.split_at((HEADER_BYTES - self.header_bytes).min(bytes.len()));
                *bytes = rest;
                let end = self.header_bytes + taken.len();
                self.header[self.header_bytes..end].copy_from_slice(taken);
                self.header_bytes = end;
                if end < HEADER_BYTES {
                    return Ok(None);
                }
                let head = self.decode_header()?;
                self.payload = Vec::with_capacity(head.length.min(AHEAD_BYTES_MAX));
                *self.head.insert(head)
            }
        };
        let (taken, rest) = bytes.split_at((head.length - self.payload.len()).min(bytes.len()));
        *bytes = rest;
        self.payload.extend_from_slice(taken);
        if self.payload.len() < head.length {
            return Ok(None);
        }
        let payload = std::mem::take(&mut self.payload);
        let expected = u32::from_le_bytes(self.header[8..].try_into().expect("four bytes"));
        let found = checksum(&self.header, &payload);
        if expected != found {
            let what = format!("checksum {expected:08x} expected, {found:08x} found");
            return Err(self.corrupt(8, what));
        }
        self.offset += (HEADER_BYTES + payload.len()) as u64;
        self.head = None;
        self.header_bytes = 0;
        Ok(Some(TcpFrame { kind: head.kind, channel: head.channel, payload }))
    }

    fn decode_header(&self) -> Result<TcpFrameHeader> {
        let [l0, l1, l2, l3, kind, zero, c0, c1, ..] = self.header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > self.payload_bytes_max {
            let what = format!("a payload of {length} bytes, {} allowed", self.payload_bytes_max);
            return Err(self.corrupt(0, what));
        }
        let known = TcpFrameKind::ALL.into_iter().find(|known| known.code() == kind);
        let channel = Channel(u16::from_le_bytes([c0, c1]));
        match known {
            Some(kind) if zero == 0 && channel <= Channel::MAX => {
                Ok(TcpFrameHeader { kind, channel, length })
            }
            _ => Err(self.corrupt(4, format!("{kind} {zero} {} is an unknown kind", channel.0))),
        }
    }

    fn corrupt(&self, at: u64, what: String) -> Error {
        Error::corrupt("stream", self.offset + at, what)
    }
}

#[cfg(test)]
mod tests {
    use esker_base::Kind as ErrorKind;

    use super::*;

    fn frame(kind: TcpFrameKind, channel: u16, payload: &[u8]) -> Vec<u8> {
        [&header(kind, Channel(channel), payload)[..], payload].concat()
    }

    fn decode(bytes: &[u8], piece: usize) -> Result<Vec<TcpFrame>> {
        let mut decoder = TcpFrameDecoder::new(MESSAGE_BYTES_MAX);
        let mut frames = Vec::new();
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                frames.extend(decoder.next(&mut piece)?);
            }
        }
        Ok(frames)
    }

    /// The bytes of docs/format/message.md.
    #[test]
    fn golden() {
        let hex: String = frame(TcpFrameKind::Message, 258, b"abc")
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, "03000000030002013f44e255616263");
    }

    #[test]
    fn frames_come_back_in_pieces_of_any_size() {
        let long = vec![7; 100_000];
        let stream = [
            frame(TcpFrameKind::Hello, 0, b""),
            frame(TcpFrameKind::Message, 1, &long),
            frame(TcpFrameKind::Message, 32767, b"x"),
            frame(TcpFrameKind::Goodbye, 0, b""),
        ]
        .concat();
        for piece in [1, 2, 11, 12, 13, 4096, 1 << 20] {
            let frames = decode(&stream, piece).unwrap();
            let kinds: Vec<TcpFrameKind> = frames.iter().map(|frame| frame.kind).collect();
            assert_eq!(
                kinds,
                [
                    TcpFrameKind::Hello,
                    TcpFrameKind::Message,
                    TcpFrameKind::Message,
                    TcpFrameKind::Goodbye
                ]
            );
            assert_eq!(frames[1].payload, long);
            assert_eq!((frames[2].channel, &frames[2].payload[..]), (Channel(32767), &b"x"[..]));
        }
    }

    #[test]
    fn a_part_of_a_frame_is_no_frame() {
        let whole = frame(TcpFrameKind::Message, 5, b"some payload");
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length], 3).unwrap(), []);
        }
    }

    /// A flip in the length may leave the decoder waiting for more bytes, up to its bound; any
    /// other flip is detected.
    #[test]
    fn every_flip_is_noticed_or_waits() {
        let whole = frame(TcpFrameKind::Message, 5, b"some payload");
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match decode(&flipped, 7) {
                Ok(frames) => assert!(frames.is_empty() && bit < 32, "bit {bit}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            }
        }
    }

    #[test]
    fn what_a_header_says_is_not_allocated() {
        let mut decoder = TcpFrameDecoder::new(MESSAGE_BYTES_MAX);
        let payload = vec![0; MESSAGE_BYTES_MAX];
        let header = header(TcpFrameKind::Message, Channel(0), &payload);
        assert_eq!(decoder.next(&mut &header[..]).unwrap(), None);
        assert!(decoder.payload.capacity() <= AHEAD_BYTES_MAX);
        assert_eq!(decoder.missing_bytes(), Some(MESSAGE_BYTES_MAX));
        let mut strict = TcpFrameDecoder::new(100);
        assert_eq!(strict.next(&mut &header[..]).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    /// Random bytes, and valid streams with random damage, never cause a panic.
    #[test]
    fn noise_never_panics() {
        let mut random = esker_base::Random::from_seed(1);
        for _ in 0..2000 {
            let mut stream =
                [frame(TcpFrameKind::Hello, 0, b"hi"), frame(TcpFrameKind::Message, 9, &[1; 200])]
                    .concat();
            for _ in 0..random.below(4) {
                let at = usize::try_from(random.below(stream.len() as u64)).unwrap();
                stream[at] = random.next_u64() as u8;
            }
            let piece = usize::try_from(1 + random.below(40)).unwrap();
            if let Err(error) = decode(&stream, piece) {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
    }
}

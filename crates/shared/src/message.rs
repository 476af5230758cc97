// SPDX-License-Identifier: Apache-2.0
//! Messages between ranks that ask for segments and the servers that hold them.
//!
//! Layout: docs/format/message.md, "Segments". This file is their only encoder and decoder. Bytes
//! of another rank are checked: decoding never panics, nor allocates more than a small multiple of
//! the message.

use std::ops::Range;

use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_base::{Error, Kind, Result};
use esker_comm::collective::agreement::{decode_error, encode_error};
use esker_comm::transport::MESSAGE_BYTES_MAX;
use esker_comm::{Channel, Rank};
use esker_extent::{Segment, SegmentLog, SegmentRun};
use esker_table::manifest::SetId;

/// Requests.
pub const REQUEST: Channel = Channel(Channel::OWN.0 + 0x30);
/// Replies.
pub const REPLY: Channel = Channel(Channel::OWN.0 + 0x31);

/// Most offsets in one request.
pub const OFFSETS_MAX: usize = 1 << 16;
/// Most single segments in one answer, or in one request for their bytes. If a range has more, the
/// answer has the first of them, and the caller continues after the last.
pub const SEGMENTS_MAX: usize = 1 << 16;
/// Most bytes of file data that one request asks for.
pub const FETCH_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of an answer: the index of a file, and all others. A segment takes less than 90.
const INDEX_BYTES_MAX: usize = 1 << 30;
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Longer replies are split into several messages.
pub const PART_BYTES: usize = 1 << 20;

const _: () = assert!(OFFSETS_MAX <= SEGMENTS_MAX);
const _: () = assert!(SEGMENTS_MAX * 90 < ANSWER_BYTES_MAX && ANSWER_BYTES_MAX < MESSAGE_BYTES_MAX);
const _: () = assert!(FETCH_BYTES_MAX < ANSWER_BYTES_MAX as u64);

const PUT: u8 = 1;
const SYNC: u8 = 2;
const RANGE: u8 = 3;
const LOCATE: u8 = 4;
const PUNCH: u8 = 5;
const INDEX: u8 = 6;
const END: u8 = 7;
const HOLDERS: u8 = 8;
const FETCH: u8 = 9;

const DONE: u8 = 1;
const MORE: u8 = 2;
const FAILED: u8 = 3;

/// A request to another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankRequest {
    /// Put these runs over existing segments, in this order; all are of one file.
    Put(Vec<SegmentRun>),
    /// Make all puts so far survive power loss.
    Sync,
    /// The content of a range of a file: the first [`SEGMENTS_MAX`] pieces.
    Range(u128, Range<u64>),
    /// The segments that have the bytes at these offsets.
    Locate(u128, Vec<u64>),
    /// Make a range a hole, up to the end of the [`SEGMENTS_MAX`]th segment that this frees.
    Punch(u128, Range<u64>),
    /// All segments of a file, as runs.
    Index(u128),
    /// The end of the last segment that is not a hole.
    End(u128),
    /// The segments whose bytes are in this range of a log; `TooLarge` if there are more than
    /// [`SEGMENTS_MAX`].
    Holders(SetId, u64, Range<u64>),
    /// The bytes of these segments, in order. They are in logs that the receiver reads; at most
    /// [`SEGMENTS_MAX`] segments with [`FETCH_BYTES_MAX`] bytes.
    Fetch(Vec<SegmentRun>),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankReply {
    /// Segments, as runs; empty if the request needs no data in return.
    Runs(Vec<SegmentRun>),
    /// A number.
    Number(u64),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl RankRequest {
    /// The most bytes that an answer to this request may have.
    #[must_use]
    pub fn answer_bytes_max(&self) -> usize {
        if matches!(self, Self::Index(_)) { INDEX_BYTES_MAX } else { ANSWER_BYTES_MAX }
    }

    /// Encodes the request as a message with id `id`.
    #[must_use]
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut out = id.to_le_bytes().to_vec();
        let file_range = |out: &mut Vec<u8>, file: &u128, range: &Range<u64>| {
            out.extend_from_slice(&file.to_le_bytes());
            put_varint(out, range.start);
            put_varint(out, range.end);
        };
        match self {
            Self::Put(runs) => {
                out.push(PUT);
                out.extend_from_slice(&SegmentLog::encode_batch(runs));
            }
            Self::Sync => out.push(SYNC),
            Self::Range(file, range) => {
                out.push(RANGE);
                file_range(&mut out, file, range);
            }
            Self::Locate(file, offsets) => {
                out.push(LOCATE);
                out.extend_from_slice(&file.to_le_bytes());
                put_varint(&mut out, offsets.len() as u64);
                offsets.iter().for_each(|offset| put_varint(&mut out, *offset));
            }
            Self::Punch(file, range) => {
                out.push(PUNCH);
                file_range(&mut out, file, range);
            }
            Self::Index(file) => {
                out.push(INDEX);
                out.extend_from_slice(&file.to_le_bytes());
            }
            Self::End(file) => {
                out.push(END);
                out.extend_from_slice(&file.to_le_bytes());
            }
            Self::Holders(set, log, range) => {
                out.push(HOLDERS);
                out.extend_from_slice(&set.0.to_le_bytes());
                put_varint(&mut out, *log);
                put_varint(&mut out, range.start);
                put_varint(&mut out, range.end);
            }
            Self::Fetch(runs) => {
                out.push(FETCH);
                out.extend_from_slice(&SegmentLog::encode_batch(runs));
            }
        }
        out
    }

    /// Decodes a request of `from`: its id and content.
    ///
    /// # Errors
    /// `Corrupt` names the sender.
    pub fn decode(from: Rank, bytes: &[u8]) -> Result<(u64, Self)> {
        decode_request(bytes).map_err(|damage| damage.of(&format!("a request of {from}"), 0))
    }
}

fn decode_request(bytes: &[u8]) -> Result<(u64, RankRequest), WireDamage> {
    let mut input = WireInput::new(bytes);
    let (id, kind) = (input.u64()?, input.u8()?);
    let request = match kind {
        PUT => RankRequest::Put(take_runs(&mut input)?),
        SYNC => RankRequest::Sync,
        RANGE => RankRequest::Range(input.u128()?, take_range(&mut input)?),
        LOCATE => {
            let file = input.u128()?;
            let count = input.varint_max(OFFSETS_MAX, "a number of offsets")?;
            let offsets = (0..count).map(|_| input.varint()).collect::<Result<_, WireDamage>>()?;
            RankRequest::Locate(file, offsets)
        }
        PUNCH => RankRequest::Punch(input.u128()?, take_range(&mut input)?),
        INDEX => RankRequest::Index(input.u128()?),
        END => RankRequest::End(input.u128()?),
        HOLDERS => {
            RankRequest::Holders(SetId(input.u128()?), input.varint()?, take_range(&mut input)?)
        }
        FETCH => {
            let runs = take_runs(&mut input)?;
            let is_one = |run: &SegmentRun| run.count == 1 && run.first.place.is_some();
            let lengths = runs.iter().map(|run| run.first.length);
            let bytes = lengths.fold(0_u64, u64::saturating_add);
            if !runs.iter().all(is_one) || bytes > FETCH_BYTES_MAX || runs.len() > SEGMENTS_MAX {
                return Err(input.damage("segments of a bounded length"));
            }
            RankRequest::Fetch(runs)
        }
        _ => return Err(input.damage("a known request")),
    };
    input.end()?;
    Ok((id, request))
}

fn take_range(input: &mut WireInput) -> Result<Range<u64>, WireDamage> {
    let range = input.varint()?..input.varint()?;
    if range.start <= range.end { Ok(range) } else { Err(input.damage("a range")) }
}

fn take_runs(input: &mut WireInput) -> Result<Vec<SegmentRun>, WireDamage> {
    SegmentLog::decode_batch(input.take(input.left())?)
}

/// Encodes the reply to request `id` as messages, of which the last is marked.
pub fn encode_reply(id: u64, reply: &Result<RankReply>) -> Vec<Vec<u8>> {
    let body = match reply {
        Ok(RankReply::Runs(runs)) => [vec![0], SegmentLog::encode_batch(runs)].concat(),
        Ok(RankReply::Number(number)) => [&[1][..], &number.to_le_bytes()].concat(),
        Ok(RankReply::Bytes(bytes)) => [&[2][..], bytes].concat(),
        Err(error) => encode_error(error),
    };
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let last = if reply.is_ok() { DONE } else { FAILED };
    for part in body.chunks(PART_BYTES) {
        parts.push([&id.to_le_bytes()[..], &[MORE], part].concat());
    }
    parts.last_mut().expect("a body has a byte")[8] = last;
    parts
}

/// One message of a reply.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplyPart<'a> {
    /// The id of the request.
    pub id: u64,
    /// `None` unless it is the last message; then whether the request succeeded.
    pub end: Option<bool>,
    /// A part of the reply's body.
    pub body: &'a [u8],
}

/// Decodes one message of a reply of `from`.
///
/// # Errors
/// `Corrupt` names the sender.
pub fn decode_part(from: Rank, bytes: &[u8]) -> Result<ReplyPart<'_>> {
    let head = bytes.split_first_chunk::<8>();
    let (id, end, body) = match head {
        Some((id, [MORE, body @ ..])) => (id, None, body),
        Some((id, [DONE, body @ ..])) => (id, Some(true), body),
        Some((id, [FAILED, body @ ..])) => (id, Some(false), body),
        _ => return Err(corrupt(from)),
    };
    Ok(ReplyPart { id: u64::from_le_bytes(*id), end, body })
}

/// Decodes the whole `body` of a reply of `from`: an answer if the request `succeeded`, else an
/// error.
///
/// # Errors
/// The error of the other rank, naming it; `Corrupt` for a malformed body.
pub fn decode_body(from: Rank, succeeded: bool, body: &[u8]) -> Result<RankReply> {
    let Some((first, rest)) = body.split_first() else { return Err(corrupt(from)) };
    if !succeeded {
        return Err(decode_error(from, *first, rest));
    }
    match first {
        0 => SegmentLog::decode_batch(rest)
            .map(RankReply::Runs)
            .map_err(|damage| damage.of(&format!("a reply of {from}"), 0)),
        1 => {
            let number = rest.try_into().map_err(|_| corrupt(from))?;
            Ok(RankReply::Number(u64::from_le_bytes(number)))
        }
        2 => Ok(RankReply::Bytes(rest.to_vec())),
        _ => Err(corrupt(from)),
    }
}

fn corrupt(from: Rank) -> Error {
    Error::new(Kind::Corrupt, format!("a malformed reply of {from}"))
}

/// Each of `segments` as a run of its own, as messages carry them.
#[must_use]
pub fn ones(segments: &[Segment]) -> Vec<SegmentRun> {
    segments.iter().map(|segment| SegmentRun::one(*segment)).collect()
}

#[cfg(test)]
mod tests {
    use esker_extent::LogPlace;

    use super::*;

    fn run(count: u64) -> SegmentRun {
        let place = Some(LogPlace { set: SetId(2), log: 3, offset: 4 });
        let first = Segment { file: 1, offset: 16, length: 8, place, checksum: None, seq: 0 };
        let stride = if count == 1 { 8 } else { 32 };
        SegmentRun { first, count, stride, log_stride: 8 }
    }

    fn requests() -> Vec<RankRequest> {
        vec![
            RankRequest::Put(vec![run(5), SegmentRun::one(Segment::hole(1, 3, 300)), run(1)]),
            RankRequest::Sync,
            RankRequest::Range(7, 3..u64::MAX),
            RankRequest::Locate(7, vec![0, 300, 1 << 50]),
            RankRequest::Punch(7, 0..1),
            RankRequest::Index(7),
            RankRequest::End(u128::MAX),
            RankRequest::Holders(SetId(9), 1 << 40, 5..6),
            RankRequest::Fetch(vec![run(1)]),
        ]
    }

    #[test]
    fn requests_come_back() {
        for request in requests() {
            let bytes = request.encode(77);
            assert_eq!(RankRequest::decode(Rank(3), &bytes).unwrap(), (77, request));
        }
    }

    /// The bytes of docs/format/message.md.
    #[test]
    fn golden() {
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let put = RankRequest::Put(vec![run(5)]).encode(258);
        let file = "01000000000000000000000000000000";
        let set = "02000000000000000000000000000000";
        let run = format!("10{file}2008052008{set}0308");
        assert_eq!(hex(&put), format!("0201000000000000010001{run}"));
        let reply = encode_reply(258, &Ok(RankReply::Number(7)));
        assert_eq!(reply.len(), 1);
        assert_eq!(hex(&reply[0]), "020100000000000001010700000000000000");
    }

    #[test]
    fn what_was_cut_off_or_changed_is_refused_or_another_request() {
        for request in requests() {
            let bytes = request.encode(77);
            for length in 0..bytes.len() {
                match RankRequest::decode(Rank(3), &bytes[..length]) {
                    // A request without segments is valid, too.
                    Ok((_, other)) => {
                        assert!(
                            other == RankRequest::Put(vec![])
                                || other == RankRequest::Fetch(vec![])
                        );
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Corrupt);
                        assert!(error.to_string().contains("rank 3"), "{error}");
                    }
                }
            }
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Ok((_, RankRequest::Put(runs) | RankRequest::Fetch(runs))) =
                    RankRequest::decode(Rank(3), &flipped)
                {
                    assert!(runs.iter().all(SegmentRun::is_possible));
                }
            }
        }
    }

    fn answer(parts: &[Vec<u8>]) -> Result<RankReply> {
        let mut body = Vec::new();
        for bytes in parts {
            let part = decode_part(Rank(3), bytes)?;
            body.extend_from_slice(part.body);
            if let Some(succeeded) = part.end {
                return decode_body(Rank(3), succeeded, &body);
            }
        }
        Err(corrupt(Rank(3)))
    }

    #[test]
    fn replies_come_back_in_parts() {
        let long = vec![9; 3 * PART_BYTES + 5];
        for reply in [RankReply::Runs(vec![run(5)]), RankReply::Number(5), RankReply::Bytes(long)] {
            let parts = encode_reply(5, &Ok(reply.clone()));
            assert_eq!(parts.len(), if matches!(reply, RankReply::Bytes(_)) { 4 } else { 1 });
            assert_eq!(answer(&parts).unwrap(), reply);
            assert!(answer(&parts[..parts.len() - 1]).is_err());
        }
        for kind in Kind::ALL {
            let failed = encode_reply(5, &Err(Error::new(kind, "no room".repeat(900))));
            let error = answer(&failed).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains("rank 3"), "{error}");
        }
        assert_eq!(answer(&[vec![0; 12]]).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn a_request_asks_for_bounded_bytes() {
        let long = Segment { length: FETCH_BYTES_MAX + 1, ..run(1).first };
        let bytes = RankRequest::Fetch(vec![SegmentRun::one(long)]).encode(1);
        assert_eq!(RankRequest::decode(Rank(1), &bytes).unwrap_err().kind(), Kind::Corrupt);
        let bytes = RankRequest::Fetch(vec![run(5)]).encode(1);
        assert_eq!(RankRequest::decode(Rank(1), &bytes).unwrap_err().kind(), Kind::Corrupt);
        let byte = SegmentRun::one(Segment { length: 1, ..run(1).first });
        let most = RankRequest::Fetch(vec![byte; SEGMENTS_MAX]);
        assert!(RankRequest::decode(Rank(1), &most.encode(1)).is_ok());
        let bytes = RankRequest::Fetch(vec![byte; SEGMENTS_MAX + 1]).encode(1);
        assert_eq!(RankRequest::decode(Rank(1), &bytes).unwrap_err().kind(), Kind::Corrupt);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Messages of the segment service: arbitrary bytes, and valid requests and replies with changes.

use esker_base::{Error, Kind, Result};
use esker_comm::Rank;
use esker_extent::{LogPlace, OPERATION_SEGMENTS_MAX, Segment, SegmentRun};
use esker_shared::message::{
    FETCH_BYTES_MAX, OFFSETS_MAX, PART_BYTES, RankReply, RankRequest, SEGMENTS_MAX, decode_body,
    decode_part, encode_reply,
};
use esker_table::manifest::SetId;

use crate::choices::Choices;

const FROM: Rank = Rank(3);

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    match choices.u8() % 4 {
        0 => drop(request(choices.rest())),
        1 => {
            let parts: Vec<&[u8]> = choices.rest().chunks(97).collect();
            reply(parts.into_iter());
        }
        2 => our_request(&mut choices),
        _ => our_reply(&mut choices),
    }
}

/// Decodes a request; a valid one is within its bounds, and unchanged by encoding it again.
fn request(bytes: &[u8]) -> Option<(u64, RankRequest)> {
    let (id, request) = match RankRequest::decode(FROM, bytes) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert_names_sender(&error);
            return None;
        }
    };
    match &request {
        RankRequest::Put(runs) => assert!(runs.iter().all(is_bounded)),
        RankRequest::Locate(_, offsets) => assert!(offsets.len() <= OFFSETS_MAX),
        RankRequest::Range(_, range) | RankRequest::Punch(_, range) => {
            assert!(range.start <= range.end)
        }
        RankRequest::Holders(_, _, range) => assert!(range.start <= range.end),
        RankRequest::Fetch(runs) => {
            let bytes: u64 = runs.iter().map(|run| run.first.length).sum();
            assert!(bytes <= FETCH_BYTES_MAX && runs.len() <= SEGMENTS_MAX);
            assert!(runs.iter().all(|run| run.count == 1 && run.is_possible()));
        }
        RankRequest::Sync | RankRequest::Index(_) | RankRequest::End(_) => {}
    }
    let again = RankRequest::decode(FROM, &request.encode(id)).expect("a request of ours");
    assert_eq!(again, (id, plain(request.clone())));
    Some((id, request))
}

fn is_bounded(run: &SegmentRun) -> bool {
    run.is_possible() && run.count <= OPERATION_SEGMENTS_MAX as u64
}

/// A request as a message carries it: segments without sequence numbers.
fn plain(mut request: RankRequest) -> RankRequest {
    if let RankRequest::Put(runs) | RankRequest::Fetch(runs) = &mut request {
        runs.iter_mut().for_each(|run| run.first.seq = 0);
    }
    request
}

/// Decodes messages as the parts of one reply.
fn reply<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Option<Result<RankReply>> {
    let mut body = Vec::new();
    for bytes in parts {
        let part = match decode_part(FROM, bytes) {
            Ok(part) => part,
            Err(error) => {
                assert_names_sender(&error);
                return None;
            }
        };
        body.extend_from_slice(part.body);
        if let Some(succeeded) = part.end {
            let reply = decode_body(FROM, succeeded, &body);
            match &reply {
                Ok(RankReply::Runs(runs)) => assert!(runs.iter().all(is_bounded)),
                Ok(_) => assert!(succeeded, "a failure is no answer"),
                Err(error) => assert!(error.to_string().contains("rank 3"), "{error}"),
            }
            return Some(reply);
        }
    }
    None
}

fn our_request(choices: &mut Choices) {
    let file = u128::from(choices.u64()) << 64 | u128::from(choices.u64());
    let (low, high) = (choices.u64(), choices.u64());
    let range = low.min(high)..low.max(high);
    let ours = match choices.u8() % 9 {
        0 => RankRequest::Put(runs(choices, 60)),
        1 => RankRequest::Sync,
        2 => RankRequest::Range(file, range),
        3 => RankRequest::Locate(file, (0..choices.below(200)).map(|_| choices.u64()).collect()),
        4 => RankRequest::Punch(file, range),
        5 => RankRequest::Index(file),
        6 => RankRequest::End(file),
        7 => RankRequest::Holders(SetId(file), choices.u64(), range),
        _ => {
            let mut runs = runs(choices, 60);
            runs.retain(|run| run.count == 1 && run.first.place.is_some());
            runs.iter_mut().for_each(|run| *run = short(run));
            RankRequest::Fetch(runs)
        }
    };
    let id = choices.u64();
    let mut bytes = ours.encode(id);
    if choices.u8().is_multiple_of(2) && choices.mutate(&mut bytes) {
        request(&bytes);
    } else {
        assert_eq!(request(&bytes), Some((id, ours)));
    }
}

fn our_reply(choices: &mut Choices) {
    let ours = match choices.u8() % 4 {
        0 => Ok(RankReply::Runs(runs(choices, 60))),
        1 => Ok(RankReply::Number(choices.u64())),
        2 => {
            let mut bytes = choices.rest().to_vec();
            // Sometimes longer than a part.
            bytes.resize(bytes.len() + choices.below(2) * PART_BYTES, 7);
            Ok(RankReply::Bytes(bytes))
        }
        _ => {
            let kind = Kind::ALL[choices.below(Kind::ALL.len())];
            Err(Error::new(kind, String::from_utf8_lossy(&choices.string(3000))))
        }
    };
    let id = choices.u64();
    let mut parts = encode_reply(id, &ours);
    let place = choices.below(parts.len());
    let changed = choices.u8().is_multiple_of(2) && choices.mutate(&mut parts[place]);
    let got = reply(parts.iter().map(Vec::as_slice));
    if !changed {
        match (got.expect("it has an end"), ours) {
            (Ok(got), Ok(ours)) => assert_eq!(got, ours),
            (Err(got), Err(ours)) => assert_eq!(got.kind(), ours.kind()),
            (got, ours) => panic!("{got:?} of {ours:?}"),
        }
    }
}

/// Up to `count_max` possible runs, with arbitrary numbers or small ones.
fn runs(choices: &mut Choices, count_max: usize) -> Vec<SegmentRun> {
    let mut runs = Vec::new();
    for _ in 0..choices.below(count_max) {
        let place = LogPlace {
            set: SetId(1 + u128::from(choices.u64())),
            log: choices.u64(),
            offset: choices.u64(),
        };
        let place = (!choices.u8().is_multiple_of(5)).then_some(place);
        let file = u128::from(choices.u8() % 3);
        let first = Segment {
            place,
            checksum: None,
            seq: 0,
            ..Segment::hole(file, choices.u64(), choices.u64())
        };
        let count = 1 + choices.u64() % OPERATION_SEGMENTS_MAX as u64;
        let run = SegmentRun { first, count, stride: choices.u64(), log_stride: choices.u64() };
        let run = if choices.u8().is_multiple_of(2) { run } else { SegmentRun::one(first) };
        if run.is_possible() {
            runs.push(if run.count == 1 { SegmentRun::one(first) } else { run });
        }
    }
    runs
}

/// The beginning of a run as a run of one segment, so short that 60 of them are within the bound.
fn short(run: &SegmentRun) -> SegmentRun {
    let length = run.first.length.min(FETCH_BYTES_MAX / 64);
    SegmentRun::one(Segment { length, ..run.first })
}

fn assert_names_sender(error: &Error) {
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert!(error.to_string().contains("rank 3"), "{error}");
}

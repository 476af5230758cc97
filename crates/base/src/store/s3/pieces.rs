// SPDX-License-Identifier: Apache-2.0
//! Pieces: the layout of an append log as objects, and the place of each of its bytes.
//!
//! `<log>/_00000000.log` is empty, and putting it decides who opens the log; each flush adds a
//! piece with the next number. A reader needs only a listing: the sizes give every piece's offset.

use std::ops::Range;

use object_store::ObjectMeta;
use object_store::path::Path;

use crate::{Error, Result};

/// The bytes of `/_00000000.log`.
pub(super) const SUFFIX_BYTES: usize = 14;

const DIGITS: usize = 8;

/// Maximum pieces of a log: as many as the digits can count.
pub(super) const PIECES_MAX: u32 = 100_000_000;

/// Returns the name of piece `number` of `log`.
pub(super) fn name(log: &str, number: u32) -> String {
    format!("{log}/_{number:08}.log")
}

/// Returns the log of which `name` is a piece, if it is one.
pub(super) fn log_of(name: &str) -> Option<&str> {
    split(name).map(|(log, _)| log)
}

fn split(name: &str) -> Option<(&str, u32)> {
    let (log, leaf) = name.rsplit_once('/')?;
    let digits = leaf.strip_prefix('_')?.strip_suffix(".log")?;
    let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { Some((log, digits.parse().ok()?)) } else { None }
}

/// The time of the last write to an object, in nanoseconds since the Unix epoch.
pub(super) fn modified_ns(meta: &ObjectMeta) -> u64 {
    meta.last_modified.timestamp_nanos_opt().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0)
}

/// The pieces that hold the bytes of one log.
#[derive(Debug)]
pub(super) struct LogPieces {
    /// Key, offset in the log and size of each non-empty piece, in order.
    pieces: Vec<(Path, u64, u64)>,
    bytes: u64,
}

impl LogPieces {
    /// Collects the pieces of `log` as listed, in order; `Corrupt` if one is missing.
    pub(super) fn new(log: &str, listed: &[ObjectMeta]) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut bytes = 0;
        for (expected, meta) in (0..).zip(listed) {
            match split(meta.location.as_ref()) {
                Some((_, number)) if number == expected => {}
                found => {
                    let found = found.map(|(_, number)| number);
                    let what = format!("expected piece {expected}, got {found:?}");
                    return Err(Error::corrupt(log, bytes, what));
                }
            }
            if meta.size > 0 {
                pieces.push((meta.location.clone(), bytes, meta.size));
            }
            bytes += meta.size;
        }
        Ok(Self { pieces, bytes })
    }

    /// The size of the log in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the keys, and the ranges within them, that make up `range` of the log.
    pub(super) fn cover(&self, range: &Range<u64>) -> Vec<(Path, Range<u64>)> {
        let first = self.pieces.partition_point(|(_, start, bytes)| start + bytes <= range.start);
        self.pieces[first..]
            .iter()
            .take_while(|(_, start, _)| *start < range.end)
            .map(|(path, start, bytes)| {
                let from = range.start.saturating_sub(*start);
                (path.clone(), from..(range.end - start).min(*bytes))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn listed(sizes: &[(u32, u64)]) -> Vec<ObjectMeta> {
        let meta = |(number, size): &(u32, u64)| ObjectMeta {
            location: Path::parse(name("a/log", *number)).expect("a key"),
            last_modified: Default::default(),
            size: *size,
            e_tag: None,
            version: None,
        };
        sizes.iter().map(meta).collect()
    }

    #[test]
    fn names_are_told_from_others() {
        assert_eq!(name("a/log", 7), "a/log/_00000007.log");
        assert_eq!(name("", PIECES_MAX - 1).len(), SUFFIX_BYTES);
        assert_eq!(log_of("a/log/_00000007.log"), Some("a/log"));
        for other in ["_00000007.log", "a/00000007", "a/_0000007.log", "a/_0000000x.log", "a/b"] {
            assert_eq!(log_of(other), None, "{other}");
        }
    }

    #[test]
    fn ranges_span_pieces() {
        let pieces = LogPieces::new("a/log", &listed(&[(0, 0), (1, 10), (2, 5)])).expect("whole");
        assert_eq!(pieces.bytes(), 15);
        let cover = |range: Range<u64>| -> Vec<(String, Range<u64>)> {
            let cover = pieces.cover(&range).into_iter();
            cover.map(|(path, range)| (path.to_string(), range)).collect()
        };
        let (one, two) = (name("a/log", 1), name("a/log", 2));
        assert_eq!(cover(0..10), [(one.clone(), 0..10)]);
        assert_eq!(cover(8..12), [(one, 8..10), (two.clone(), 0..2)]);
        assert_eq!(cover(10..15), [(two, 0..5)]);
        assert_eq!(cover(15..15), []);
    }

    #[test]
    fn a_missing_piece_is_corrupt() {
        let error = LogPieces::new("a/log", &listed(&[(0, 0), (2, 5)])).expect_err("a gap");
        assert_eq!(error.kind(), Kind::Corrupt);
        LogPieces::new("a/log", &listed(&[(1, 5)])).expect_err("no first piece");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Agreement: collectives whose ranks all succeed or all fail, and values of any length.
//!
//! An error travels as the exit code of its kind, which is never 0, and its text.

use esker_base::{Error, Kind, Result};

use super::{Collectives, VALUE_BYTES_MAX};
use crate::{Rank, Transport};

/// Error texts are cut to this length.
const TEXT_BYTES_MAX: usize = 1 << 10;

impl<T: Transport> Collectives<T> {
    /// Sends `bytes` of `root`, of any length, to all ranks.
    ///
    /// # Errors
    /// As [`Collectives::reduce`].
    pub fn broadcast_bytes(&mut self, root: Rank, bytes: &[u8]) -> Result<Vec<u8>> {
        let length = self.broadcast(root, (bytes.len() as u64).to_le_bytes().to_vec())?;
        let length = length.try_into().map(u64::from_le_bytes).map_err(|_| wrong_answer())?;
        let mut all = Vec::new();
        while (all.len() as u64) < length {
            let end = bytes.len().min(all.len() + VALUE_BYTES_MAX);
            let part = bytes.get(all.len()..end).unwrap_or_default().to_vec();
            let part = self.broadcast(root, part)?;
            if part.is_empty() {
                return Err(wrong_answer());
            }
            all.extend_from_slice(&part);
        }
        Ok(all)
    }

    /// Sends the success of `root`, or its error, to all ranks; what the others give is ignored.
    ///
    /// # Errors
    /// The error of `root`; as [`Collectives::reduce`].
    pub fn broadcast_result(&mut self, root: Rank, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        let message = match &own {
            Ok(bytes) => [&[0], &bytes[..]].concat(),
            Err(error) => encode_error(error),
        };
        let told = self.broadcast_bytes(root, &message)?;
        // The failed rank returns its own error, which has more detail than the encoded one.
        own?;
        match told.split_first() {
            Some((0, bytes)) => Ok(bytes.to_vec()),
            Some((code, text)) => Err(decode_error(root, *code, text)),
            None => Err(wrong_answer()),
        }
    }

    /// Returns `own` if it is a success at all ranks. Otherwise fails at all: at a rank that has an
    /// error with that error, at the others with that of the lowest failed rank.
    ///
    /// # Errors
    /// These; as [`Collectives::reduce`].
    pub fn agree<R>(&mut self, own: Result<R>) -> Result<R> {
        // Big-endian, so that the message of the lowest rank is the smallest.
        let me = self.transport().rank().0.to_be_bytes();
        let failure = own.as_ref().err().map(|error| [&me[..], &encode_error(error)].concat());
        let mut join = |into: &mut Vec<u8>, other: &[u8]| {
            if !other.is_empty() && (into.is_empty() || other < &into[..]) {
                *into = other.to_vec();
            }
        };
        let told = self.all_reduce(Rank(0), failure.unwrap_or_default(), &mut join);
        let own = own?;
        let told = told?;
        if told.is_empty() {
            return Ok(own);
        }
        let (rank, error) = told.split_first_chunk::<4>().ok_or_else(wrong_answer)?;
        let (code, text) = error.split_first().ok_or_else(wrong_answer)?;
        Err(decode_error(Rank(u32::from_be_bytes(*rank)), *code, text))
    }
}

/// Encodes an error: the exit code of its kind, and its text.
#[must_use]
pub fn encode_error(error: &Error) -> Vec<u8> {
    let text = error.to_string();
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    [&[error.kind().exit_code()][..], &text.as_bytes()[..end]].concat()
}

/// Decodes an error of `from`, given its `code` and `text`, and adds the rank's name.
#[must_use]
pub fn decode_error(from: Rank, code: u8, text: &[u8]) -> Error {
    let kind = Kind::of_exit_code(code).unwrap_or(Kind::Unavailable);
    Error::new(kind, format!("{from}: {}", String::from_utf8_lossy(text)))
}

fn wrong_answer() -> Error {
    Error::new(Kind::Corrupt, "a rank sent an answer of the wrong kind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::CollectiveOptions;
    use crate::threads;

    #[test]
    fn the_lowest_failed_rank_fails_all() -> Result<()> {
        let outcomes = threads::run(5, 2, |transport| {
            let mut collectives = Collectives::new(transport, CollectiveOptions::default());
            let me = collectives.transport().rank().0;
            collectives.agree(Ok(()))?;
            let own = if me % 2 == 1 { Err(Error::new(Kind::NoSpace, "full")) } else { Ok(()) };
            let failed = collectives.agree(own).expect_err("two ranks fail");
            Ok((failed.kind(), failed.to_string()))
        })?;
        for (rank, (kind, text)) in outcomes.iter().enumerate() {
            let expected = if rank % 2 == 1 { "full" } else { "rank 1: full" };
            assert_eq!((*kind, &text[..]), (Kind::NoSpace, expected));
        }
        Ok(())
    }

    #[test]
    fn a_root_sends_what_it_found_or_why_it_failed() -> Result<()> {
        let long = vec![7; 3 * VALUE_BYTES_MAX + 1];
        threads::run(4, 2, |transport| {
            let mut collectives = Collectives::new(transport, CollectiveOptions::default());
            let is_root = collectives.transport().rank() == Rank(2);
            let mut told = |own| collectives.broadcast_result(Rank(2), own);
            assert_eq!(told(Ok(if is_root { long.clone() } else { vec![1] }))?, long);
            assert_eq!(told(Ok(Vec::new()))?, b"");
            let own = if is_root { Err(Error::new(Kind::Exists, "taken")) } else { Ok(vec![1]) };
            let failed = told(own).expect_err("the root fails");
            assert_eq!(failed.kind(), Kind::Exists);
            Ok(())
        })
        .map(drop)
    }

    #[test]
    fn long_error_texts_are_cut() {
        let error = Error::new(Kind::Corrupt, "é".repeat(TEXT_BYTES_MAX));
        let encoded = encode_error(&error);
        assert_eq!(encoded.len(), 1 + TEXT_BYTES_MAX);
        let decoded = decode_error(Rank(3), encoded[0], &encoded[1..]);
        assert_eq!(decoded.kind(), Kind::Corrupt);
        assert!(decoded.to_string().starts_with("rank 3: é"));
    }
}

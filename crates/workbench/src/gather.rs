// SPDX-License-Identifier: Apache-2.0
//! Gather: brings the measurements of ranks in other processes to rank 0.
//!
//! Each rank sends its own as JSON in pieces of at most [`PIECE_BYTES`], and an empty message at
//! the end. Layout: docs/format/workbench-result.md.

use esker_base::{Error, Kind, Result};
use esker_comm::{Channel, Rank, Transport};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::result::RESULT_BYTES_MAX;

/// The channel of the pieces, which belongs to the program.
const PIECES: Channel = Channel(0x0b);

/// Bytes of a message.
const PIECE_BYTES: usize = 128 << 10;

const _: () = assert!(PIECE_BYTES <= esker_comm::transport::MESSAGE_BYTES_MAX);

/// Returns what each rank passes, in rank order at rank 0, and `None` at the others.
///
/// # Errors
/// `Unavailable` names a lost rank; `Corrupt` or `TooLarge` for messages that no rank sends.
pub fn gather<T: Serialize + DeserializeOwned>(
    transport: &mut dyn Transport,
    own: T,
) -> Result<Option<Vec<T>>> {
    if transport.rank() != Rank(0) {
        let bytes = serde_json::to_vec(&own).expect("numbers and words");
        for piece in bytes.chunks(PIECE_BYTES) {
            transport.send(Rank(0), PIECES, piece.to_vec())?;
        }
        transport.send(Rank(0), PIECES, Vec::new())?;
        transport.barrier()?;
        return Ok(None);
    }
    let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); transport.size() as usize];
    let mut left = transport.size() - 1;
    let mut total = 0u64;
    while left > 0 {
        let message = transport.receive_soon(&[PIECES], "a rank's result")?;
        left -= u32::from(message.bytes.is_empty());
        total += message.bytes.len() as u64;
        if total > RESULT_BYTES_MAX {
            return Err(Error::new(Kind::TooLarge, "the results of all ranks exceed 1 GiB"));
        }
        bytes[message.from.index()].extend_from_slice(&message.bytes);
    }
    transport.barrier()?;
    let mut ranks = vec![own];
    for (rank, bytes) in bytes.iter().enumerate().skip(1) {
        let what = || Error::new(Kind::Corrupt, format!("the result of rank {rank}"));
        ranks.push(serde_json::from_slice(bytes).map_err(|error| what().with_source(error))?);
    }
    Ok(Some(ranks))
}

// SPDX-License-Identifier: Apache-2.0
//! Gathering: distributes values of any length from all ranks to all ranks, along the log-ring.

use esker_base::Result;
use esker_comm::collective::{Collectives, Reduction, VALUE_BYTES_MAX};
use esker_comm::{Rank, Transport};

use crate::message::{decode_error, encode_error};
use crate::service::no_answer;
use crate::slices::SLOTS;

/// Ranks whose values one reduction concatenates.
const GROUP: u32 = 2048;
/// Bytes of a rank's number and its value.
const ITEM_BYTES: usize = 4 + 20;

const _: () = assert!(SLOTS * 8 <= VALUE_BYTES_MAX);
const _: () = assert!(GROUP as usize * ITEM_BYTES <= VALUE_BYTES_MAX);

/// Sends `bytes` of `root` to all ranks.
pub(crate) fn broadcast<T: Transport>(
    collectives: &mut Collectives<T>,
    root: Rank,
    bytes: &[u8],
) -> Result<Vec<u8>> {
    let length = (bytes.len() as u64).to_le_bytes().to_vec();
    let length = collectives.broadcast(root, length)?;
    let length = length.try_into().map(u64::from_le_bytes).map_err(|_| no_answer())?;
    let mut all = Vec::new();
    while (all.len() as u64) < length {
        let end = bytes.len().min(all.len() + VALUE_BYTES_MAX);
        let part = bytes.get(all.len()..end).unwrap_or_default().to_vec();
        let part = collectives.broadcast(root, part)?;
        if part.is_empty() {
            return Err(no_answer());
        }
        all.extend_from_slice(&part);
    }
    Ok(all)
}

/// Combines the numbers of all ranks, position by position as `by` says, and returns the result at
/// every rank. All ranks must give the same number of them.
pub(crate) fn reduce_numbers<T: Transport>(
    collectives: &mut Collectives<T>,
    own: &[u64],
    by: impl Fn(usize) -> Reduction,
) -> Result<Vec<u64>> {
    let bytes = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut join = |into: &mut Vec<u8>, other: &[u8]| {
        for (place, (own, other)) in
            into.as_chunks_mut().0.iter_mut().zip(other.as_chunks().0).enumerate()
        {
            let joined = by(place).combine(u64::from_le_bytes(*own), u64::from_le_bytes(*other));
            *own = joined.to_le_bytes();
        }
        // A difference in length is noticed at the end.
        into.truncate(other.len());
    };
    let all = collectives.all_reduce(Rank(0), bytes, &mut join)?;
    let all: Vec<u64> =
        all.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    if all.len() == own.len() { Ok(all) } else { Err(no_answer()) }
}

/// Broadcasts the success of `root`, or its error.
pub(crate) fn broadcast_result<T: Transport>(
    collectives: &mut Collectives<T>,
    root: Rank,
    own: Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let message = match &own {
        Ok(bytes) => [&[0], &bytes[..]].concat(),
        Err(error) => encode_error(error),
    };
    let told = broadcast(collectives, root, &message)?;
    // The failed rank returns its own error, which has more detail than the encoded one.
    own?;
    match told.split_first() {
        Some((0, bytes)) => Ok(bytes.to_vec()),
        Some((code, text)) => Err(decode_error(root, *code, text)),
        None => Err(no_answer()),
    }
}

/// Returns `own` if it is a success at all ranks. Otherwise fails at all: at a rank that has an
/// error with that error, at the others with that of the lowest failed rank.
pub(crate) fn agree<T: Transport, R>(
    collectives: &mut Collectives<T>,
    own: Result<R>,
) -> Result<R> {
    // Big-endian, so that the message of the lowest rank is the smallest.
    let me = collectives.transport().rank().0.to_be_bytes();
    let failure = own.as_ref().err().map(|error| [&me[..], &encode_error(error)].concat());
    let mut join = |into: &mut Vec<u8>, other: &[u8]| {
        if !other.is_empty() && (into.is_empty() || other < &into[..]) {
            *into = other.to_vec();
        }
    };
    let told = collectives.all_reduce(Rank(0), failure.unwrap_or_default(), &mut join);
    let own = own?;
    let told = told?;
    if told.is_empty() {
        return Ok(own);
    }
    let (rank, error) = told.split_first_chunk::<4>().ok_or_else(no_answer)?;
    let (code, text) = error.split_first().ok_or_else(no_answer)?;
    Err(decode_error(Rank(u32::from_be_bytes(*rank)), *code, text))
}

/// Returns the values of all ranks at every rank, each with the rank that gave it.
pub(crate) fn all_gather<T: Transport>(
    collectives: &mut Collectives<T>,
    own: &[[u8; 20]],
) -> Result<Vec<(Rank, [u8; 20])>> {
    let (me, size) = (collectives.transport().rank(), collectives.transport().size());
    let rounds = collectives.all_reduce_u64(Rank(0), own.len() as u64, Reduction::Max)?;
    let mut all = Vec::new();
    let mut join = |into: &mut Vec<u8>, other: &[u8]| into.extend_from_slice(other);
    for round in 0..rounds {
        for group in (0..size).step_by(GROUP as usize) {
            let is_in = me.0 >= group && me.0 - group < GROUP;
            let value = usize::try_from(round).ok().and_then(|round| own.get(round));
            let value = value.filter(|_| is_in);
            let value = value.map(|value| [&me.0.to_le_bytes()[..], value].concat());
            let root = Rank(group);
            let joined = collectives.all_reduce(root, value.unwrap_or_default(), &mut join)?;
            for item in joined.chunks(ITEM_BYTES) {
                let parts = item.split_first_chunk::<4>();
                let parts = parts.and_then(|(rank, value)| Some((rank, value.try_into().ok()?)));
                let (rank, value) = parts.ok_or_else(no_answer)?;
                all.push((Rank(u32::from_le_bytes(*rank)), value));
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Returns the bytes of all ranks that have some at every rank, in order of ranks.
pub(crate) fn all_gather_bytes<T: Transport>(
    collectives: &mut Collectives<T>,
    own: &[u8],
) -> Result<Vec<(Rank, Vec<u8>)>> {
    let me = collectives.transport().rank();
    let announced: &[[u8; 20]] = if own.is_empty() { &[] } else { &[[0; 20]] };
    let mut all = Vec::new();
    for (rank, _) in all_gather(collectives, announced)? {
        let bytes = if rank == me { own } else { &[] };
        all.push((rank, broadcast(collectives, rank, bytes)?));
    }
    Ok(all)
}

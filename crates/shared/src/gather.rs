// SPDX-License-Identifier: Apache-2.0
//! Gathering: distributes values of any length from all ranks to all ranks, along the log-ring.

use esker_base::Result;
use esker_comm::collective::{Collectives, Reduction, VALUE_BYTES_MAX};
use esker_comm::{Rank, Transport};

use crate::service::no_answer;
use crate::slices::SLOTS;

/// Ranks whose values one reduction concatenates.
const GROUP: u32 = 2048;
/// Bytes of a rank's number and its value.
const ITEM_BYTES: usize = 4 + 20;

const _: () = assert!(SLOTS * 8 <= VALUE_BYTES_MAX);
const _: () = assert!(GROUP as usize * ITEM_BYTES <= VALUE_BYTES_MAX);

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
        all.push((rank, collectives.broadcast_bytes(rank, bytes)?));
    }
    Ok(all)
}

// SPDX-License-Identifier: Apache-2.0
//! Exchange: the messages of ranks in a step: sums over all ranks, and electrons that move between
//! slabs.
//!
//! Rank 0 adds in rank order, so that a run is reproducible to the last bit. A job of thousands
//! would use `esker_comm::collective`, which adds in no particular order.

use esker_base::{Error, Kind, Random, Result};
use esker_comm::{Channel, Rank, ReceivedMessage, Transport};

use crate::electron::{Electron, KEY_BYTES, RECORD_BYTES};

/// Numbers to be added, to rank 0.
const PARTS: Channel = Channel(0x100);
/// Their sums, from rank 0.
const SUMS: Channel = Channel(0x101);
/// Electrons to the left neighbour, and to the right one.
const LEFT: Channel = Channel(0x102);
const RIGHT: Channel = Channel(0x103);

/// Replaces each number by its sum over all ranks, added in rank order.
///
/// # Errors
/// Errors of the transport; `Corrupt` if ranks disagree on the count of numbers.
pub fn sum<T: Transport + ?Sized>(transport: &mut T, numbers: &mut [f64]) -> Result<()> {
    let (me, size) = (transport.rank(), transport.size());
    if me != Rank(0) {
        transport.send(Rank(0), PARTS, encode(numbers))?;
        let sums = transport.receive_soon(&[SUMS], "the sums over all ranks")?;
        return apply(&sums.bytes, numbers, |number, sum| *number = sum);
    }
    let mut parts = vec![Vec::new(); size as usize];
    for _ in 1..size {
        let message = transport.receive_soon(&[PARTS], "the numbers of a rank")?;
        parts[message.from.index()] = message.bytes;
    }
    for part in &parts[1..] {
        apply(part, numbers, |number, part| *number += part)?;
    }
    for rank in Rank::all(size).skip(1) {
        transport.send(rank, SUMS, encode(numbers))?;
    }
    Ok(())
}

/// A new random number, the same on all ranks.
///
/// # Errors
/// Errors of the transport.
pub fn random_id<T: Transport + ?Sized>(transport: &mut T) -> Result<u128> {
    if transport.rank() == Rank(0) {
        let id = Random::from_system().u128();
        for rank in Rank::all(transport.size()).skip(1) {
            transport.send(rank, SUMS, id.to_le_bytes().to_vec())?;
        }
        return Ok(id);
    }
    let message = transport.receive_soon(&[SUMS], "the number of rank 0")?;
    let id = message.bytes.as_array().ok_or_else(|| {
        Error::new(Kind::Corrupt, "a message of rank 0 that is no 128-bit number")
    })?;
    Ok(u128::from_le_bytes(*id))
}

fn encode(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Applies each number of a message to the corresponding one of `numbers`.
fn apply(message: &[u8], numbers: &mut [f64], change: impl Fn(&mut f64, f64)) -> Result<()> {
    let (theirs, rest) = message.as_chunks();
    if theirs.len() != numbers.len() || !rest.is_empty() {
        let (bytes, count) = (message.len(), numbers.len());
        let what = format!("{bytes} bytes of another rank for {count} numbers");
        return Err(Error::new(Kind::Corrupt, what));
    }
    let pairs = numbers.iter_mut().zip(theirs);
    pairs.for_each(|(number, bytes)| change(number, f64::from_le_bytes(*bytes)));
    Ok(())
}

/// The `count` fastest of all electrons, fastest first, on rank 0; an empty list on the others.
///
/// # Errors
/// Errors of the transport; `Corrupt` if a message does not hold whole electrons.
pub fn fastest<T: Transport + ?Sized>(
    transport: &mut T,
    electrons: &[Electron],
    count: usize,
) -> Result<Vec<Electron>> {
    let mut fastest = electrons.to_vec();
    let keep = |electrons: &mut Vec<Electron>| {
        electrons.sort_by(|a, b| b.speed_squared().total_cmp(&a.speed_squared()));
        electrons.truncate(count);
    };
    keep(&mut fastest);
    if transport.rank() != Rank(0) {
        transport.send(Rank(0), PARTS, pack(&fastest))?;
        return Ok(Vec::new());
    }
    for _ in 1..transport.size() {
        unpack(&transport.receive_soon(&[PARTS], "the fastest of a rank")?, &mut fastest)?;
    }
    keep(&mut fastest);
    Ok(fastest)
}

/// Sends `left` and `right` to the neighbours on the circle of ranks, and returns the electrons
/// that these sent.
///
/// # Errors
/// Errors of the transport; `Corrupt` if a message does not hold whole electrons.
pub fn swap<T: Transport + ?Sized>(
    transport: &mut T,
    left: &[Electron],
    right: &[Electron],
) -> Result<Vec<Electron>> {
    let (me, size) = (transport.rank().0, transport.size());
    transport.send(Rank((me + size - 1) % size), LEFT, pack(left))?;
    transport.send(Rank((me + 1) % size), RIGHT, pack(right))?;
    let mut arrived = Vec::new();
    for channel in [LEFT, RIGHT] {
        let message = transport.receive_soon(&[channel], "the electrons of a neighbour")?;
        unpack(&message, &mut arrived)?;
    }
    Ok(arrived)
}

fn pack(electrons: &[Electron]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(electrons.len() * RECORD_BYTES);
    for electron in electrons {
        bytes.extend_from_slice(&electron.key());
        bytes.extend_from_slice(&electron.state());
    }
    bytes
}

fn unpack(message: &ReceivedMessage, electrons: &mut Vec<Electron>) -> Result<()> {
    let (records, rest) = message.bytes.as_chunks::<RECORD_BYTES>();
    for record in records {
        let (key, state) = record.split_at(KEY_BYTES);
        electrons.push(Electron::parse(key, state).expect("a record of the right length"));
    }
    if rest.is_empty() {
        return Ok(());
    }
    let what = format!("{} bytes of electrons from {}", message.bytes.len(), message.from);
    Err(Error::new(Kind::Corrupt, what))
}

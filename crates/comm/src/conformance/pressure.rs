// SPDX-License-Identifier: Apache-2.0
//! Back pressure: memory stays bounded, a full channel delays no other, and ranks never deadlock.

use std::time::Duration;

use super::messages::{above, next};
use crate::transport::{SendOutcome, Transport};
use crate::{Channel, Rank};

const DATA: Channel = Channel(3);
const OTHER: Channel = Channel(4);

const MESSAGE_BYTES: usize = 64 << 10;

/// An upper bound on the bytes that any transport may hold for one channel, including kernel
/// buffers.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A channel whose receiver takes nothing eventually refuses messages; other channels and barriers
/// continue; no accepted message is lost.
pub fn backpressure(transport: &mut dyn Transport) {
    if transport.size() == 1 {
        return;
    }
    let (sender, receiver) = (Rank(0), Rank(1));
    let mut taken = 0_u32;
    if transport.rank() == sender {
        loop {
            let mut bytes = vec![0; MESSAGE_BYTES];
            bytes[..4].copy_from_slice(&taken.to_le_bytes());
            match transport.try_send(receiver, DATA, bytes).expect("the receiver is there") {
                SendOutcome::Done => taken += 1,
                // A second refusal, after a moment, is final.
                SendOutcome::Full(bytes) => {
                    let _ = transport.receive(&[], Duration::from_millis(20)).expect("no loss");
                    match transport.try_send(receiver, DATA, bytes).expect("the receiver is there")
                    {
                        SendOutcome::Done => taken += 1,
                        SendOutcome::Full(_) => break,
                    }
                }
            }
            assert!(taken as usize * MESSAGE_BYTES <= HELD_BYTES_MAX, "no bound");
        }
        transport.send(receiver, OTHER, taken.to_le_bytes().to_vec()).expect("another channel");
    }
    transport.barrier().expect("a full channel does not hold up barriers");
    if transport.rank() == receiver {
        let told = next(transport, &[OTHER]);
        let expected = u32::from_le_bytes(told.bytes.try_into().expect("four bytes"));
        assert!(expected > 0);
        for number in 0..expected {
            let message = next(transport, &[DATA]);
            assert_eq!(message.bytes[..4], number.to_le_bytes());
            assert_eq!(message.bytes.len(), MESSAGE_BYTES);
        }
    }
    transport.barrier().expect("all come");
    let held = transport.counters().buffered_bytes_max;
    assert!(held <= HELD_BYTES_MAX as u64, "{held}");
}

/// Pairs of ranks that send each other more than all buffers hold finish, provided that they
/// receive when refused.
pub fn full_both_ways(transport: &mut dyn Transport) {
    let total: usize = if transport.size() <= 16 { 200 } else { 20 };
    let (to, me) = (above(transport, 1), transport.rank());
    let (mut sent, mut received) = (0, 0);
    let mut pending = None;
    while sent < total || received < total {
        if sent < total {
            let bytes = pending.take().unwrap_or_else(|| vec![me.0 as u8; MESSAGE_BYTES]);
            match transport.try_send(to, DATA, bytes).expect("the neighbour is there") {
                SendOutcome::Done => {
                    sent += 1;
                    continue;
                }
                SendOutcome::Full(bytes) => pending = Some(bytes),
            }
        }
        if let Some(message) =
            transport.receive(&[DATA], Duration::from_millis(50)).expect("no loss")
        {
            assert_eq!(message.bytes, vec![message.from.0 as u8; MESSAGE_BYTES]);
            received += 1;
        }
    }
}

/// A plain send waits for a slow receiver, and loses nothing.
pub fn slow_receiver(transport: &mut dyn Transport) {
    const MESSAGES: u32 = 100;
    if transport.size() == 1 {
        return;
    }
    let (sender, receiver) = (Rank(transport.size() - 1), Rank(0));
    if transport.rank() == sender {
        for number in 0..MESSAGES {
            let mut bytes = vec![1; MESSAGE_BYTES];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            transport.send(receiver, DATA, bytes).expect("it receives, if slowly");
        }
    } else if transport.rank() == receiver {
        for number in 0..MESSAGES {
            if number % 25 == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(next(transport, &[DATA]).bytes[..4], number.to_le_bytes());
        }
    }
}

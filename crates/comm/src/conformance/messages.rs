// SPDX-License-Identifier: Apache-2.0
//! Messages arrive once, whole, in order, and on their channel.

use std::time::Duration;

use esker_base::Kind;

use crate::transport::{MESSAGE_BYTES_MAX, ReceivedMessage, SendOutcome, Transport};
use crate::{Channel, Rank};

const DATA: Channel = Channel(1);
const OTHER: Channel = Channel(2);

/// The rank `distance` above this one, modulo the job's size.
pub(super) fn above(transport: &dyn Transport, distance: u32) -> Rank {
    Rank((transport.rank().0 + distance) % transport.size())
}

pub(super) fn send(transport: &mut dyn Transport, to: Rank, channel: Channel, bytes: Vec<u8>) {
    transport.send(to, channel, bytes).expect("a send to a rank that receives");
}

pub(super) fn next(transport: &mut dyn Transport, channels: &[Channel]) -> ReceivedMessage {
    transport.receive_soon(channels, "a message of the test").expect("it was sent")
}

/// Sends `outgoing` while receiving `expected` messages, so that no channel stays full.
pub(super) fn exchange(
    transport: &mut dyn Transport,
    channel: Channel,
    outgoing: impl IntoIterator<Item = (Rank, Vec<u8>)>,
    expected: usize,
) -> Vec<ReceivedMessage> {
    let mut outgoing = outgoing.into_iter();
    let mut refused = None;
    let mut received = Vec::new();
    let mut is_done = false;
    while !is_done || received.len() < expected {
        match refused.take().or_else(|| outgoing.next()) {
            Some((to, bytes)) => match transport.try_send(to, channel, bytes).expect("no loss") {
                SendOutcome::Done => continue,
                SendOutcome::Full(bytes) => refused = Some((to, bytes)),
            },
            None => is_done = true,
        }
        let wait = Duration::from_millis(50);
        received.extend(transport.receive(&[channel], wait).expect("no loss"));
    }
    received
}

/// Numbered messages of two senders to each rank keep their sender's order.
pub fn order(transport: &mut dyn Transport) {
    const MESSAGES: u32 = 50;
    let targets = [above(transport, 1), above(transport, 3)];
    let outgoing = (0..MESSAGES)
        .flat_map(|number| targets.map(|to| (to, number.to_le_bytes().to_vec())))
        .collect::<Vec<_>>();
    let mut seen = std::collections::BTreeMap::<Rank, Vec<u32>>::new();
    for message in exchange(transport, DATA, outgoing, 2 * MESSAGES as usize) {
        assert_eq!(message.channel, DATA);
        let number = u32::from_le_bytes(message.bytes.try_into().expect("four bytes"));
        seen.entry(message.from).or_default().push(number);
    }
    for (from, numbers) in seen {
        let copies = [1, 3].iter().filter(|distance| above_of(transport, from, **distance)).count();
        let each: Vec<u32> =
            (0..MESSAGES).flat_map(|number| std::iter::repeat_n(number, copies)).collect();
        assert_eq!(numbers, each, "from {from}");
    }
    assert_eq!(transport.receive(&[DATA], Duration::ZERO).expect("nothing is lost"), None);
}

fn above_of(transport: &dyn Transport, from: Rank, distance: u32) -> bool {
    (from.0 + distance) % transport.size() == transport.rank().0
}

/// Messages of zero bytes, one byte, sizes around powers of two, and the maximum arrive unchanged.
pub fn sizes(transport: &mut dyn Transport) {
    let mut sizes = vec![0, 1, 2, 255, 256, 4095, 4096, 65_535, 65_536, 70_000];
    // Only rank 0 sends the largest: with all ranks of a large job, memory would run out.
    if transport.rank() == Rank(0) {
        sizes.push(MESSAGE_BYTES_MAX);
    }
    let to = above(transport, 1);
    let expected = 10 + usize::from(above_of(transport, Rank(0), 1));
    let outgoing = sizes.into_iter().map(|size| (to, pattern(size)));
    for message in exchange(transport, DATA, outgoing, expected) {
        assert_eq!(message.bytes, pattern(message.bytes.len()));
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + bytes) >> 3) as u8).collect()
}

/// A rank can send to itself.
pub fn oneself(transport: &mut dyn Transport) {
    let me = transport.rank();
    send(transport, me, DATA, b"note to self".to_vec());
    let message = next(transport, &[DATA]);
    assert_eq!((message.from, &message.bytes[..]), (me, &b"note to self"[..]));
}

/// A channel that is not requested stays untouched; of several channels the first that has a
/// message is served.
pub fn priority(transport: &mut dyn Transport) {
    let me = transport.rank();
    send(transport, me, OTHER, b"other".to_vec());
    send(transport, me, DATA, b"data".to_vec());
    assert_eq!(next(transport, &[DATA]).channel, DATA);
    // The other message was sent before, and has arrived too once this wait is over.
    send(transport, me, DATA, b"again".to_vec());
    let _ = transport.receive(&[], Duration::from_millis(5)).expect("no loss");
    assert_eq!(next(transport, &[OTHER, DATA]).channel, OTHER);
    assert_eq!(next(transport, &[OTHER, DATA]).channel, DATA);
}

/// A message that cannot be sent is refused, and leaves the transport unchanged.
pub fn refusals(transport: &mut dyn Transport) {
    let nobody = Rank(transport.size());
    let me = transport.rank();
    let error = transport.try_send(nobody, DATA, Vec::new()).expect_err("no such rank");
    assert_eq!(error.kind(), Kind::Invalid);
    let error = transport.try_send(me, Channel(u16::MAX), Vec::new()).expect_err("no channel");
    assert_eq!(error.kind(), Kind::Invalid);
    let large = vec![0; MESSAGE_BYTES_MAX + 1];
    let error = transport.try_send(me, DATA, large).expect_err("too large");
    assert_eq!(error.kind(), Kind::TooLarge);
    assert_eq!(transport.receive(&[DATA], Duration::ZERO).expect("no loss"), None);
}

/// Counters count messages and bytes in both directions.
pub fn counters(transport: &mut dyn Transport) {
    let before = transport.counters();
    let to = above(transport, 1);
    exchange(transport, DATA, [(to, vec![7; 1000])], 1);
    let after = transport.counters();
    assert_eq!(after.sent_messages - before.sent_messages, 1);
    assert_eq!(after.sent_bytes - before.sent_bytes, 1000);
    assert_eq!(after.received_messages - before.received_messages, 1);
    assert_eq!(after.received_bytes - before.received_bytes, 1000);
}

/// No rank leaves a barrier before the last has arrived.
pub fn barriers(transport: &mut dyn Transport) {
    for round in 0..5_u32 {
        let late = Rank(round % transport.size());
        let me = transport.rank();
        if me == late {
            // No rank can have passed a barrier that this rank has not reached.
            std::thread::sleep(Duration::from_millis(2));
            let early = transport.receive(&[OTHER], Duration::ZERO).expect("no loss");
            assert_eq!(early, None, "round {round}");
        }
        transport.barrier().expect("all come");
        if me == late {
            let others = transport.size() as usize - 1;
            exchange(transport, OTHER, [], others);
        } else {
            send(transport, late, OTHER, vec![0]);
        }
        transport.barrier().expect("all come");
    }
}

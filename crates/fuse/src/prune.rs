// SPDX-License-Identifier: Apache-2.0
//! Prune: bounds the number of files that a mount remembers on the kernel's behalf.
//!
//! The kernel keeps names and inodes until the whole machine runs short of memory, and a mount has
//! a node for each (`node_table`). When there are many nodes, a thread passes the numbers of a part
//! of them to the kernel, which drops those not in use and confirms with ordinary FORGET messages
//! (`FUSE_NOTIFY_PRUNE`, since Linux 6.18). Older kernels refuse the message and decide alone.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::io::Errno;

use crate::node_table::{NodeTable, NumberedNode};

/// Number of files that the kernel may know before the mount asks it to forget some. A node takes
/// about 250 bytes.
pub const KNOWN_FILES_MAX: usize = 1 << 20;
/// Each request covers one in this many of them.
const PRUNED_SHARE: usize = 4;
/// Interval between counts, each of which takes a lock for each shard of the table.
const INTERVAL: Duration = Duration::from_millis(100);
/// Intervals after which the kernel is asked again even though it forgot little the last time.
const WAITS_MAX: u32 = 50;
/// `FUSE_NOTIFY_PRUNE`.
const NOTIFY_PRUNE: i32 = 9;
/// Maximum numbers in a message: as many as the kernel copies at a time.
const NUMBERS_MAX: usize = 512;
/// `fuse_out_header` and `fuse_notify_prune_out`.
const HEADER_BYTES: usize = 32;

/// Asks the kernel, through `device`, to forget files whenever it knows more than `known_max`;
/// returns when the sender of `end` is dropped.
pub(crate) fn prune_until(
    nodes: &NodeTable<impl NumberedNode>,
    device: &OwnedFd,
    known_max: usize,
    end: &Receiver<()>,
) {
    let slack = known_max / PRUNED_SHARE;
    // Number of files at the last request; 0 once there are few.
    let mut asked_at = 0;
    let mut waits = 0;
    while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let known = nodes.count();
        if known <= known_max {
            asked_at = 0;
            continue;
        }
        // If programs use most of them, asking again is useless until there are more.
        let has_forgotten = known + slack / 2 <= asked_at;
        if asked_at > 0 && !has_forgotten && known < asked_at + slack && waits < WAITS_MAX {
            waits += 1;
            continue;
        }
        waits = 0;
        for numbers in nodes.unused(PRUNED_SHARE).chunks(NUMBERS_MAX) {
            match rustix::io::write(device, &message(numbers)) {
                Ok(_) | Err(Errno::INTR) => {}
                // The kernel does not know the message, or the mount has ended.
                Err(_) => return,
            }
        }
        asked_at = known;
    }
}

/// The message that asks the kernel to forget the inodes with these numbers.
fn message(numbers: &[u64]) -> Vec<u8> {
    let bytes = HEADER_BYTES + size_of_val(numbers);
    let length = |count: usize| u32::try_from(count).expect("a few numbers").to_ne_bytes();
    let mut message = Vec::with_capacity(bytes);
    message.extend(length(bytes));
    message.extend(NOTIFY_PRUNE.to_ne_bytes());
    // It does not answer a request.
    message.extend(0u64.to_ne_bytes());
    message.extend(length(numbers.len()));
    message.extend([0; 12]);
    numbers.iter().for_each(|number| message.extend(number.to_ne_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_long_as_it_says() {
        for count in [0, 1, NUMBERS_MAX] {
            let message = message(&vec![7; count]);
            assert_eq!(message.len(), HEADER_BYTES + 8 * count);
            assert_eq!(message[..4], u32::try_from(message.len()).expect("small").to_ne_bytes());
            assert_eq!(message[16..20], u32::try_from(count).expect("small").to_ne_bytes());
        }
    }
}

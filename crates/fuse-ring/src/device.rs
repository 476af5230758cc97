// SPDX-License-Identifier: Apache-2.0
//! Device: reads from `/dev/fuse` the messages that rings do not carry.
//!
//! These are forgotten files and interrupts. No program waits for either, so the thread is lazy:
//! after each message about forgotten files it sleeps for a moment, and the kernel sends the files
//! that it forgets meanwhile in one message, without a wake-up for each. The thread ignores
//! interrupts, since no operation waits for long; the kernel needs no answer to them.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno as SystemErrno;
use zerocopy::IntoBytes;

use crate::abi::{self, opcode};
use crate::operation::{Request, read, split};
use crate::{Answer, Answerer, caught, panicked};

/// Time that the thread sleeps after a message about forgotten files.
const FORGETTING_INTERVAL: Duration = Duration::from_millis(5);

/// Reads `device` until the mount is gone. Requests have at most `payload_bytes_max` bytes besides
/// their header.
///
/// # Errors
/// Those of the device, and at the end an error if `answerer` panicked.
pub(crate) fn read_device(
    device: &OwnedFd,
    answerer: &Arc<dyn Answerer>,
    payload_bytes_max: usize,
) -> std::io::Result<()> {
    let headers = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
    let mut buffer = vec![0; (payload_bytes_max + headers).max(abi::READ_BUFFER_BYTES_MIN)];
    let has_panicked = Cell::new(false);
    let forget = |node, count| {
        if caught(|| answerer.forget(node, count)).is_none() {
            has_panicked.set(true);
        }
    };
    let ended = loop {
        let count = match rustix::io::read(device, &mut buffer) {
            Ok(count) => count,
            Err(SystemErrno::NODEV) => break Ok(()),
            // ENOENT: the program gave its request up meanwhile.
            Err(SystemErrno::NOENT | SystemErrno::INTR | SystemErrno::AGAIN) => continue,
            Err(errno) => break Err(errno.into()),
        };
        let Some((header, arguments, payload)) = split(&buffer[..count]) else { continue };
        match header.opcode {
            opcode::FORGET => {
                if let Some(abi::ForgetIn { count }) = read(arguments) {
                    forget(header.node, count);
                }
                std::thread::sleep(FORGETTING_INTERVAL);
            }
            opcode::BATCH_FORGET => {
                for one in payload.chunks_exact(size_of::<abi::ForgetOne>()) {
                    let abi::ForgetOne { node, count } = read(one).expect("it is that long");
                    forget(node, count);
                }
                std::thread::sleep(FORGETTING_INTERVAL);
            }
            opcode::INTERRUPT => {}
            // Sent before the kernel had all slots.
            _ => {
                let request = Request::parse(&header, arguments, payload);
                let answer = request.map_or(Some(Err(fuser::Errno::EINVAL)), |request| {
                    caught(|| answerer.answer(&request))
                });
                if answer.is_none() {
                    has_panicked.set(true);
                }
                let answer = answer.unwrap_or(Err(fuser::Errno::EIO));
                reply(device, header.unique, answer, payload_bytes_max);
            }
        }
    };
    if has_panicked.get() { ended.and(Err(panicked())) } else { ended }
}

fn reply(
    device: &OwnedFd,
    unique: u64,
    answer: Result<Answer, fuser::Errno>,
    payload_bytes_max: usize,
) {
    let header_bytes = size_of::<abi::OutHeader>();
    let mut message = vec![0; header_bytes + payload_bytes_max];
    let written = answer
        .and_then(|answer| answer.write(&mut message[header_bytes..]).ok_or(fuser::Errno::EIO));
    let (error, count) = match written {
        Ok(count) => (0, count),
        Err(errno) => (-i32::from(errno), 0),
    };
    message.truncate(header_bytes + count);
    let bytes = u32::try_from(message.len()).expect("requests are small");
    message[..header_bytes].copy_from_slice(abi::OutHeader { bytes, error, unique }.as_bytes());
    // It fails if the program has given up.
    let _ = rustix::io::write(device.as_fd(), &message);
}

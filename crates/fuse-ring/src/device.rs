// SPDX-License-Identifier: Apache-2.0
//! Device: what rings do not carry is read from `/dev/fuse`.
//!
//! These are files that the kernel forgets, and interrupts. Nobody waits for either, so the thread is
//! lazy: after it has read what was forgotten it sleeps for a moment, and then gets what was forgotten
//! meanwhile in one message, without a wake-up for each file. Interrupts are passed over, since no
//! operation waits for long; the kernel needs no answer to them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno as SystemErrno;
use zerocopy::IntoBytes;

use crate::abi::{self, opcode};
use crate::operation::{Request, read, split};
use crate::{Answerer, answer_or_eio};

/// How long the thread sleeps after it was told of forgotten files.
const FORGETTING_INTERVAL: Duration = Duration::from_millis(5);

/// Reads `device` until the mount is gone. Requests have at most `payload_bytes_max` bytes besides
/// their header.
pub(crate) fn read_device(
    device: &OwnedFd,
    answerer: &Arc<dyn Answerer>,
    payload_bytes_max: usize,
) -> std::io::Result<()> {
    let headers = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
    let mut buffer = vec![0; (payload_bytes_max + headers).max(abi::READ_BUFFER_BYTES_MIN)];
    loop {
        let count = match rustix::io::read(device, &mut buffer) {
            Ok(count) => count,
            Err(SystemErrno::NODEV) => return Ok(()),
            // ENOENT: the request was given up meanwhile.
            Err(SystemErrno::NOENT | SystemErrno::INTR | SystemErrno::AGAIN) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let Some((header, arguments, payload)) = split(&buffer[..count]) else { continue };
        match header.opcode {
            opcode::FORGET => {
                if let Some(abi::ForgetIn { count }) = read(arguments) {
                    answerer.forget(header.node, count);
                }
                std::thread::sleep(FORGETTING_INTERVAL);
            }
            opcode::BATCH_FORGET => {
                for one in payload.chunks_exact(size_of::<abi::ForgetOne>()) {
                    let abi::ForgetOne { node, count } = read(one).expect("it is that long");
                    answerer.forget(node, count);
                }
                std::thread::sleep(FORGETTING_INTERVAL);
            }
            opcode::INTERRUPT => {}
            // From before the rings were there.
            _ => {
                let request = Request::parse(&header, arguments, payload);
                answer_here(device, answerer, header.unique, request, payload_bytes_max);
            }
        }
    }
}

fn answer_here(
    device: &OwnedFd,
    answerer: &Arc<dyn Answerer>,
    unique: u64,
    request: Option<Request<'_>>,
    payload_bytes_max: usize,
) {
    let header_bytes = size_of::<abi::OutHeader>();
    let mut message = vec![0; header_bytes + payload_bytes_max];
    let answer = match &request {
        Some(request) => answer_or_eio(answerer, request).0,
        None => Err(fuser::Errno::EINVAL),
    };
    let written = answer
        .and_then(|answer| answer.write(&mut message[header_bytes..]).ok_or(fuser::Errno::EIO));
    let (error, count) = match written {
        Ok(count) => (0, count),
        Err(errno) => (-i32::from(errno), 0),
    };
    message.truncate(header_bytes + count);
    let bytes = u32::try_from(message.len()).expect("requests are small");
    message[..header_bytes].copy_from_slice(abi::OutHeader { bytes, error, unique }.as_bytes());
    // Whoever asked may have given up.
    let _ = rustix::io::write(device.as_fd(), &message);
}

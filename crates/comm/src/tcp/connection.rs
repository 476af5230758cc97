// SPDX-License-Identifier: Apache-2.0
//! Connection: a socket between two ranks. It carries the messages of one channel from the rank
//! that opened it; the other direction shows only that the receiver is alive.
//!
//! Never blocks: bytes that the kernel does not accept wait in `out`, and partial frames wait in
//! the decoder.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::frame::{self, HEADER_BYTES, TcpFrameDecoder, TcpFrameKind};
use super::handshake::{GREETING_BYTES_MAX, HandshakeHello, HandshakeNonce};
use crate::queues::held_bytes;
use crate::{Channel, Rank};

/// Most frames per write call.
const FRAMES_PER_WRITE: usize = 32;

/// A machine that does not answer for this long counts as dead, and its ranks as lost.
const SILENCE: Duration = Duration::from_secs(30);

const PROBE: Duration = Duration::from_secs(5);

/// State of the connection's handshake, and the rank at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerRole {
    /// This rank opened the connection; the other end has not proved that it is the intended rank.
    Opening { hello: HandshakeHello },
    /// This rank opened it and has sent its proof; the other end has proved its rank, and has not
    /// sent its welcome.
    Proving { to: Rank, channel: Channel },
    /// This rank opened it and has been welcomed.
    Outgoing { to: Rank, channel: Channel },
    /// The other end opened it, and has not sent a hello.
    Stranger,
    /// The other end opened it and sent a hello, but has not proved its rank.
    Challenged { hello: HandshakeHello, nonce: HandshakeNonce },
    /// A rank opened it, and has proved which.
    Incoming { from: Rank, channel: Channel },
}

impl PeerRole {
    /// The rank at the other end.
    pub fn peer(self) -> Option<Rank> {
        match self {
            Self::Opening { hello } => Some(hello.to),
            Self::Proving { to, .. } | Self::Outgoing { to, .. } => Some(to),
            Self::Incoming { from, .. } => Some(from),
            Self::Stranger | Self::Challenged { .. } => None,
        }
    }

    /// The channel whose messages this rank sends.
    pub fn sends(self) -> Option<Channel> {
        match self {
            Self::Opening { hello } => Some(hello.channel),
            Self::Proving { channel, .. } | Self::Outgoing { channel, .. } => Some(channel),
            Self::Stranger | Self::Challenged { .. } | Self::Incoming { .. } => None,
        }
    }

    /// True if the other end opened the connection and has not proved which rank it is.
    pub fn is_stranger(self) -> bool {
        matches!(self, Self::Stranger | Self::Challenged { .. })
    }
}

/// A socket between two ranks.
#[derive(Debug)]
pub(super) struct RankConnection {
    pub socket: TcpStream,
    pub role: PeerRole,
    pub decoder: TcpFrameDecoder,
    /// True once the other end has said goodbye.
    pub has_goodbye: bool,
    /// True while epoll watches the socket; not while its channel is full.
    pub is_watched: bool,
    /// True while epoll watches for room to write.
    pub is_watched_for_room: bool,
    out: VecDeque<OutFrame>,
    /// Bytes of the first frame that are already written.
    gone: usize,
    /// Bytes that the messages in `out` count for.
    unsent: usize,
    is_broken: bool,
}

#[derive(Debug)]
struct OutFrame {
    header: [u8; HEADER_BYTES],
    payload: Vec<u8>,
}

impl OutFrame {
    /// Bytes that the frame counts for: none unless it is a message.
    fn held_bytes(&self) -> usize {
        let is_message = self.header[4] == TcpFrameKind::Message.code();
        if is_message { held_bytes(self.payload.len()) } else { 0 }
    }
}

impl RankConnection {
    /// Starts to connect to `address`; a failure shows later.
    pub fn open(address: SocketAddr, role: PeerRole) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Self::new(TcpStream::from(socket), role, TcpFrameDecoder::new(GREETING_BYTES_MAX))
    }

    /// Wraps a connection that the other end opened.
    pub fn accepted(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Self::new(socket, PeerRole::Stranger, TcpFrameDecoder::new(GREETING_BYTES_MAX))
    }

    fn new(socket: TcpStream, role: PeerRole, decoder: TcpFrameDecoder) -> io::Result<Self> {
        // Batches are gathered above this layer, so a write should leave at once.
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, SILENCE / 2)?;
        sockopt::set_tcp_keepintvl(&socket, PROBE)?;
        sockopt::set_tcp_keepcnt(&socket, 3)?;
        let silence_ms = u32::try_from(SILENCE.as_millis()).expect("half a minute");
        sockopt::set_tcp_user_timeout(&socket, silence_ms)?;
        Ok(Self {
            socket,
            role,
            decoder,
            has_goodbye: false,
            is_watched: false,
            is_watched_for_room: false,
            out: VecDeque::new(),
            gone: 0,
            unsent: 0,
            is_broken: false,
        })
    }

    /// Queues a frame to be written.
    pub fn put(&mut self, kind: TcpFrameKind, channel: Channel, payload: Vec<u8>) {
        let frame = OutFrame { header: frame::header(kind, channel, &payload), payload };
        self.unsent += frame.held_bytes();
        self.out.push_back(frame);
    }

    /// Puts a proof in front of the messages, which may follow it directly.
    pub fn put_proof(&mut self, payload: Vec<u8>) {
        assert!(self.gone == 0, "only a hello goes before the challenge, and that came whole");
        let frame =
            OutFrame { header: frame::header(TcpFrameKind::Proof, Channel(0), &payload), payload };
        self.out.push_front(frame);
    }

    /// True if a queued frame may be written now.
    pub fn wants_to_write(&self) -> bool {
        self.writable_frames() > 0
    }

    /// Before the challenge only the hello may be written.
    fn writable_frames(&self) -> usize {
        match self.role {
            PeerRole::Opening { .. } => {
                let first = self.out.front();
                usize::from(
                    first.is_some_and(|frame| frame.header[4] == TcpFrameKind::Hello.code()),
                )
            }
            _ => self.out.len(),
        }
    }

    /// Writes until the kernel accepts no more.
    pub fn write(&mut self) -> io::Result<()> {
        while self.writable_frames() > 0 {
            let frames = self.writable_frames().min(FRAMES_PER_WRITE);
            let mut slices = [IoSlice::new(&[]); 2 * FRAMES_PER_WRITE];
            for (place, frame) in self.out.iter().take(frames).enumerate() {
                slices[2 * place] = IoSlice::new(&frame.header);
                slices[2 * place + 1] = IoSlice::new(&frame.payload);
            }
            let mut rest = &mut slices[..2 * frames];
            IoSlice::advance_slices(&mut rest, self.gone);
            match (&self.socket).write_vectored(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                // Not connected yet, or the send buffer is full: epoll reports when it is writable.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) =>
                {
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, written: usize) {
        self.gone += written;
        while let Some(first) = self.out.front() {
            let bytes = HEADER_BYTES + first.payload.len();
            if self.gone < bytes {
                break;
            }
            self.gone -= bytes;
            self.unsent -= first.held_bytes();
            self.out.pop_front();
        }
    }

    /// Drops all queued frames; nothing can be written any more.
    pub fn abandon(&mut self) {
        self.is_broken = true;
        self.out.clear();
        self.gone = 0;
        self.unsent = 0;
    }

    /// True once a write has failed.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Bytes that unsent messages count for.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// True if any frame is unsent.
    pub fn has_out(&self) -> bool {
        !self.out.is_empty()
    }
}

impl AsFd for RankConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

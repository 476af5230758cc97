// SPDX-License-Identifier: Apache-2.0
//! Handles each received frame according to the state of its connection.

use esker_base::{Error, Result};

use super::RankSockets;
use crate::tcp::connection::PeerRole;
use crate::tcp::frame::{self, TcpFrame};
use crate::tcp::handshake::{HandshakeHello, HandshakeNonce};
use crate::transport::ReceivedMessage;
use crate::{Channel, Rank};

impl RankSockets {
    pub(super) fn take_frame(&mut self, id: u64, frame: TcpFrame) -> Result<()> {
        let role = self.connection(id).role;
        match (role, frame.kind) {
            (PeerRole::Stranger, frame::TcpFrameKind::Hello) => self.challenge(id, &frame),
            (PeerRole::Challenged { hello, nonce }, frame::TcpFrameKind::Proof)
                if self.secret.is_answer(&hello, nonce, &frame.payload) =>
            {
                self.welcome(id, &hello);
            }
            (PeerRole::Stranger | PeerRole::Challenged { .. }, _) => self.refuse(id),
            (PeerRole::Opening { hello }, frame::TcpFrameKind::Challenge) => {
                let Some(proof) = self.secret.answer(&hello, &frame.payload) else {
                    let what =
                        format!("the process at its address is not {} of this job", hello.to);
                    return Err(Error::corrupt("stream", 0, what));
                };
                let connection = self.connection(id);
                connection.role = PeerRole::Proving { to: hello.to, channel: hello.channel };
                connection.put_proof(proof);
                self.write(id);
            }
            (PeerRole::Proving { to, channel }, frame::TcpFrameKind::Welcome) => {
                self.connection(id).role = PeerRole::Outgoing { to, channel };
            }
            (PeerRole::Incoming { from, channel }, frame::TcpFrameKind::Message)
                if frame.channel == channel =>
            {
                self.queues.put(ReceivedMessage { from, channel, bytes: frame.payload });
            }
            (PeerRole::Incoming { .. } | PeerRole::Outgoing { .. }, frame::TcpFrameKind::Lost) => {
                let rank = frame.payload.try_into().map(u32::from_le_bytes).map(Rank);
                let rank = rank.ok().filter(|rank| rank.0 < self.nodes.size());
                let rank = rank.ok_or_else(|| Error::corrupt("stream", 0, "no rank is lost"))?;
                let by = role.peer().expect("it has said who it is");
                self.lose(rank, &format!("as {by} says"));
            }
            (
                PeerRole::Incoming { .. } | PeerRole::Outgoing { .. },
                frame::TcpFrameKind::Goodbye,
            ) => {
                let connection = self.connection(id);
                let is_first = !std::mem::replace(&mut connection.has_goodbye, true);
                let peer = role.peer().expect("it has said who it is");
                self.peers.mark_left(peer);
                if is_first && matches!(role, PeerRole::Incoming { .. }) {
                    self.peers.end_connection(peer);
                }
            }
            (role, kind) => {
                return Err(Error::corrupt("stream", 0, format!("{kind:?} for {role:?}")));
            }
        }
        Ok(())
    }

    /// Answers a hello: proves this rank to the other process, and asks it for its own proof.
    fn challenge(&mut self, id: u64, frame: &TcpFrame) {
        let hello = HandshakeHello::decode(&frame.payload).filter(|hello| {
            let is_rank = hello.from.0 < self.nodes.size() && hello.from != self.rank;
            is_rank && hello.to == self.rank && hello.channel <= Channel::MAX
        });
        let Some(hello) = hello else { return self.refuse(id) };
        let nonce = HandshakeNonce::random();
        let challenge = self.secret.challenge(&hello, nonce);
        let connection = self.connection(id);
        connection.role = PeerRole::Challenged { hello, nonce };
        connection.put(frame::TcpFrameKind::Challenge, Channel(0), challenge);
        self.write(id);
    }

    /// Admits a rank that has proved its identity.
    fn welcome(&mut self, id: u64, hello: &HandshakeHello) {
        let HandshakeHello { from, channel, .. } = *hello;
        // A second connection could overtake the first.
        if !self.incoming.insert((from, channel)) {
            return self.refuse(id);
        }
        self.acceptor.release_stranger();
        let lost = self.lost.as_ref().map(|(rank, _)| rank.0.to_le_bytes().to_vec());
        let connection = self.connection(id);
        connection.role = PeerRole::Incoming { from, channel };
        connection.decoder.trust();
        connection.put(frame::TcpFrameKind::Welcome, Channel(0), Vec::new());
        if let Some(lost) = lost {
            connection.put(frame::TcpFrameKind::Lost, Channel(0), lost);
        }
        self.peers.begin_connection(from);
        self.write(id);
    }
}

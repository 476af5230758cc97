//! Handles each received frame according to the state of its connection.

use esker_base::{Error, Result};

use super::Network;
use crate::tcp::connection::Role;
use crate::tcp::frame::{self, Frame};
use crate::tcp::greeting::{Hello, Nonce};
use crate::transport::Message;
use crate::{Channel, Rank};

impl Network {
    pub(super) fn take_frame(&mut self, id: u64, frame: Frame) -> Result<()> {
        let role = self.connection(id).role;
        match (role, frame.kind) {
            (Role::Stranger, frame::Kind::Hello) => self.challenge(id, &frame),
            (Role::Challenged { hello, nonce }, frame::Kind::Proof)
                if self.secret.is_answer(&hello, nonce, &frame.payload) =>
            {
                self.welcome(id, &hello);
            }
            (Role::Stranger | Role::Challenged { .. }, _) => self.refuse(id),
            (Role::Opening { hello }, frame::Kind::Challenge) => {
                let Some(proof) = self.secret.answer(&hello, &frame.payload) else {
                    let what =
                        format!("the process at its address is not {} of this job", hello.to);
                    return Err(Error::corrupt("stream", 0, what));
                };
                let connection = self.connection(id);
                connection.role = Role::Proving { to: hello.to, channel: hello.channel };
                connection.put_proof(proof);
                self.write(id);
            }
            (Role::Proving { to, channel }, frame::Kind::Welcome) => {
                self.connection(id).role = Role::Outgoing { to, channel };
            }
            (Role::Incoming { from, channel }, frame::Kind::Message)
                if frame.channel == channel =>
            {
                self.queues.put(Message { from, channel, bytes: frame.payload });
            }
            (Role::Incoming { .. } | Role::Outgoing { .. }, frame::Kind::Lost) => {
                let rank = frame.payload.try_into().map(u32::from_le_bytes).map(Rank);
                let rank = rank.ok().filter(|rank| rank.0 < self.nodes.size());
                let rank = rank.ok_or_else(|| Error::corrupt("stream", 0, "no rank is lost"))?;
                let by = role.peer().expect("it has said who it is");
                self.lose(rank, &format!("as {by} says"));
            }
            (Role::Incoming { .. } | Role::Outgoing { .. }, frame::Kind::Goodbye) => {
                let connection = self.connection(id);
                let is_first = !std::mem::replace(&mut connection.has_goodbye, true);
                let peer = role.peer().expect("it has said who it is");
                self.peers.note_goodbye(peer);
                if is_first && matches!(role, Role::Incoming { .. }) {
                    self.peers.note_end(peer);
                }
            }
            (role, kind) => {
                return Err(Error::corrupt("stream", 0, format!("{kind:?} for {role:?}")));
            }
        }
        Ok(())
    }

    /// Answers a hello: proves this rank to the other process, and asks it for its own proof.
    fn challenge(&mut self, id: u64, frame: &Frame) {
        let hello = Hello::decode(&frame.payload).filter(|hello| {
            let is_rank = hello.from.0 < self.nodes.size() && hello.from != self.rank;
            is_rank && hello.to == self.rank && hello.channel <= Channel::MAX
        });
        let Some(hello) = hello else { return self.refuse(id) };
        let nonce = Nonce::random();
        let challenge = self.secret.challenge(&hello, nonce);
        let connection = self.connection(id);
        connection.role = Role::Challenged { hello, nonce };
        connection.put(frame::Kind::Challenge, Channel(0), challenge);
        self.write(id);
    }

    /// Admits a rank that has proved its identity.
    fn welcome(&mut self, id: u64, hello: &Hello) {
        let Hello { from, channel, .. } = *hello;
        // A second connection could overtake the first.
        if !self.incoming.insert((from, channel)) {
            return self.refuse(id);
        }
        self.door.note_gone();
        let lost = self.lost.as_ref().map(|(rank, _)| rank.0.to_le_bytes().to_vec());
        let connection = self.connection(id);
        connection.role = Role::Incoming { from, channel };
        connection.decoder.trust();
        connection.put(frame::Kind::Welcome, Channel(0), Vec::new());
        if let Some(lost) = lost {
            connection.put(frame::Kind::Lost, Channel(0), lost);
        }
        self.peers.note_begin(from);
        self.write(id);
    }
}

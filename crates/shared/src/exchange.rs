//! Exchange: the one message loop of a rank, which asks others and answers them.
//!
//! It is a transport: whoever waits for a message through it answers requests meanwhile, so ranks
//! that wait for each other, in a collective too, never wait for ever. A reply that its receiver has
//! no room for waits here, and while such replies are many no request is taken: they stay with their
//! senders, whose calls wait. So memory is bounded, whatever others send.
//! Concurrency: that of its transport, one thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_comm::transport::LOOK;
use esker_comm::{Barrier, Channel, Counters, Deadline, Message, NodeMap, Rank, Sent, Transport};

use crate::message::{REPLY, REQUEST, Reply, Request, decode_body, decode_part, encode_reply};
use crate::server::Server;

/// Barriers among ranks that answer meanwhile.
const BARRIER: Channel = Channel(Channel::OWN.0 + 0x32);

/// Bytes of replies that wait for room before no request is taken.
const REPLIES_BYTES_MAX: usize = 4 << 20;
/// Bytes, and number, of requests that were not answered before a further one waits.
const ASKED_BYTES_MAX: usize = 4 << 20;
const ASKED_MAX: usize = 256;

/// A transport that answers requests, and asks.
#[derive(Debug)]
pub(crate) struct Exchange<T> {
    transport: T,
    pub server: Server,
    barrier: Barrier,
    next: u64,
    /// Requests without an answer, and what came of it.
    asked: BTreeMap<u64, Asked>,
    asked_bytes: usize,
    /// Answers that nobody has taken; of puts only failures.
    answers: BTreeMap<u64, Result<Reply>>,
    /// Replies that wait for room.
    replies: BTreeMap<Rank, VecDeque<Vec<u8>>>,
    replies_bytes: usize,
    /// When to give up, unless something comes for this rank.
    deadline: Deadline,
}

#[derive(Debug)]
struct Asked {
    to: Rank,
    bytes: usize,
    is_put: bool,
    body: Vec<u8>,
    body_bytes_max: usize,
}

impl<T: Transport> Exchange<T> {
    pub fn new(transport: T, server: Server) -> Self {
        Self {
            deadline: Deadline::start(&transport),
            transport,
            server,
            barrier: Barrier::new(BARRIER),
            next: 0,
            asked: BTreeMap::new(),
            asked_bytes: 0,
            answers: BTreeMap::new(),
            replies: BTreeMap::new(),
            replies_bytes: 0,
        }
    }

    /// The number of the next request.
    pub fn next_id(&self) -> u64 {
        self.next
    }

    /// Sends `request` to `to`; waits, answering others, while too much is on its way. Its number.
    pub fn ask(&mut self, to: Rank, request: Request) -> Result<u64> {
        let id = self.next;
        self.next += 1;
        let is_put = matches!(request, Request::Put(_));
        if to == self.transport.rank() {
            let answer = self.server.answer(request);
            if !is_put || answer.is_err() {
                self.answers.insert(id, answer);
            }
            return Ok(id);
        }
        let body_bytes_max = request.answer_bytes_max();
        let message = request.encode(id);
        let bytes = message.len();
        self.wait_until("answers to earlier requests", |own| {
            own.asked.is_empty()
                || (own.asked_bytes + bytes <= ASKED_BYTES_MAX && own.asked.len() < ASKED_MAX)
        })?;
        self.asked.insert(id, Asked { to, bytes, is_put, body: Vec::new(), body_bytes_max });
        self.asked_bytes += bytes;
        self.deadline = Deadline::start(&self.transport);
        let mut sent = self.transport.try_send(to, REQUEST, message)?;
        while let Sent::Full(message) = sent {
            self.step(&[], LOOK)?;
            self.check_deadline(&format!("{to} to take a request"))?;
            sent = self.transport.try_send(to, REQUEST, message)?;
        }
        Ok(id)
    }

    /// The answer to request `id`, which is no put.
    pub fn answer(&mut self, id: u64) -> Result<Reply> {
        self.settle(id, id + 1)?;
        let what = || Error::new(Kind::Invalid, "an answer that was taken before");
        self.answers.remove(&id).ok_or_else(what)?
    }

    /// Returns once requests `first` to before `end` are answered.
    pub fn settle(&mut self, first: u64, end: u64) -> Result<()> {
        self.wait_until("an answer", |own| own.asked.range(first..end).next().is_none())
    }

    /// As [`Exchange::settle`], of puts: the first failure among them.
    pub fn settle_puts(&mut self, first: u64, end: u64) -> Result<()> {
        self.settle(first, end)?;
        let failed: Vec<u64> = self
            .answers
            .range(first..end)
            .filter(|(_, answer)| answer.is_err())
            .map(|(id, _)| *id)
            .collect();
        let mut outcome = Ok(());
        for id in failed {
            let answer = self.answers.remove(&id);
            outcome = outcome.and(answer.map_or(Ok(()), |answer| answer.map(drop)));
        }
        outcome
    }

    /// Answers others for up to `wait`, or less.
    pub fn serve(&mut self, wait: Duration) -> Result<()> {
        let end_ns = self.transport.monotonic_ns().saturating_add(wait.as_nanos() as u64);
        loop {
            let now_ns = self.transport.monotonic_ns();
            let left = Duration::from_nanos(end_ns.saturating_sub(now_ns)).min(LOOK);
            self.step(&[], left)?;
            if now_ns >= end_ns {
                return Ok(());
            }
        }
    }

    fn wait_until(&mut self, what: &str, is_over: impl Fn(&Self) -> bool) -> Result<()> {
        self.deadline = Deadline::start(&self.transport);
        while !is_over(self) {
            self.step(&[], LOOK)?;
            self.check_deadline(what)?;
        }
        Ok(())
    }

    fn check_deadline(&self, what: &str) -> Result<()> {
        let from = self.asked.values().next().map_or(self.transport.rank(), |asked| asked.to);
        self.deadline.check(&self.transport, || format!("{what}, of {from}"))
    }

    /// Moves what can be moved, and takes one message: answers it, or hands it out if it is of
    /// `channels`.
    fn step(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<Message>> {
        self.send_replies()?;
        let mut wanted = channels.to_vec();
        wanted.push(REPLY);
        if self.replies_bytes < REPLIES_BYTES_MAX {
            wanted.push(REQUEST);
        }
        let Some(message) = self.transport.receive(&wanted, wait)? else { return Ok(None) };
        match message.channel {
            REPLY => self.take_reply(&message)?,
            REQUEST => {
                let (id, request) = Request::decode(message.from, &message.bytes)?;
                let answer = self.server.answer(request);
                for part in encode_reply(id, &answer) {
                    self.replies_bytes += part.len();
                    self.replies.entry(message.from).or_default().push_back(part);
                }
                self.send_replies()?;
            }
            _ => return Ok(Some(message)),
        }
        Ok(None)
    }

    fn send_replies(&mut self) -> Result<()> {
        for (to, waiting) in &mut self.replies {
            while let Some(part) = waiting.pop_front() {
                let bytes = part.len();
                if let Sent::Full(part) = self.transport.try_send(*to, REPLY, part)? {
                    waiting.push_front(part);
                    break;
                }
                self.replies_bytes -= bytes;
            }
        }
        self.replies.retain(|_, waiting| !waiting.is_empty());
        Ok(())
    }

    fn take_reply(&mut self, message: &Message) -> Result<()> {
        let from = message.from;
        let part = decode_part(from, &message.bytes)?;
        self.deadline = Deadline::start(&self.transport);
        let asked = self.asked.get_mut(&part.id).filter(|asked| asked.to == from);
        let Some(asked) = asked else {
            let what = format!("{from} answers what it was not asked");
            return Err(Error::new(Kind::Corrupt, what));
        };
        if asked.body.len() + part.body.len() > asked.body_bytes_max {
            return Err(Error::new(Kind::TooLarge, format!("a reply of {from}")));
        }
        asked.body.extend_from_slice(part.body);
        if let Some(succeeded) = part.end
            && let Some(asked) = self.asked.remove(&part.id)
        {
            self.asked_bytes -= asked.bytes;
            let answer = decode_body(from, succeeded, &asked.body);
            if !asked.is_put || answer.is_err() {
                self.answers.insert(part.id, answer);
            }
        }
        Ok(())
    }
}

impl<T: Transport> Transport for Exchange<T> {
    fn rank(&self) -> Rank {
        self.transport.rank()
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        self.transport.nodes()
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<Sent> {
        self.transport.try_send(to, channel, bytes)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<Message>> {
        self.step(channels, wait)
    }

    fn barrier(&mut self) -> Result<()> {
        let mut barrier = std::mem::replace(&mut self.barrier, Barrier::new(BARRIER));
        let done = barrier.wait(self, |_, _| false);
        self.barrier = barrier;
        done
    }

    fn counters(&self) -> Counters {
        self.transport.counters()
    }

    fn deadline(&self) -> Duration {
        self.transport.deadline()
    }

    fn monotonic_ns(&self) -> u64 {
        self.transport.monotonic_ns()
    }
}

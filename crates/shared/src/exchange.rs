// SPDX-License-Identifier: Apache-2.0
//! Exchange: a rank's only message loop, which sends requests and answers those of others.
//!
//! It is itself a transport: a caller that waits for a message through it answers requests
//! meanwhile, so ranks that wait for each other, even in a collective, make progress. Replies that
//! find no room at their receiver are queued here. While many are queued, this rank takes no
//! requests; these stay with their senders, whose calls wait. Memory is therefore bounded, no
//! matter how much other ranks send.
//! Concurrency: that of its transport, one thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_comm::transport::LOOK;
use esker_comm::{
    BarrierState, Channel, Deadline, NodeMap, Rank, ReceivedMessage, SendOutcome, Transport,
    TransportCounters,
};

use crate::message::{
    REPLY, REQUEST, RankReply, RankRequest, decode_body, decode_part, encode_reply,
};
use crate::server::SegmentServer;

/// The channel of barriers during which ranks answer each other.
const BARRIER: Channel = Channel(Channel::OWN.0 + 0x32);

/// Bytes of queued replies beyond which no requests are taken.
const REPLIES_BYTES_MAX: usize = 4 << 20;
/// Bytes and number of unanswered requests beyond which the next request waits.
const ASKED_BYTES_MAX: usize = 4 << 20;
const ASKED_MAX: usize = 256;

/// A transport that also sends and answers requests.
#[derive(Debug)]
pub(crate) struct RequestExchange<T> {
    transport: T,
    pub server: SegmentServer,
    barrier: BarrierState,
    next: u64,
    /// Unanswered requests, with the parts of their replies so far.
    asked: BTreeMap<u64, OpenRequest>,
    asked_bytes: usize,
    /// Replies that no caller has taken, as [`KeptAnswers`] allows.
    answers: BTreeMap<u64, Result<RankReply>>,
    /// Replies that wait for room at their receiver.
    replies: BTreeMap<Rank, VecDeque<Vec<u8>>>,
    replies_bytes: usize,
    /// When waiting calls fail; restarted whenever a reply arrives for this rank.
    deadline: Deadline,
}

#[derive(Debug)]
struct OpenRequest {
    to: Rank,
    bytes: usize,
    kept: KeptAnswers,
    body: Vec<u8>,
    body_bytes_max: usize,
}

/// The answers to a request that are kept for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptAnswers {
    All,
    /// For puts: a success carries no information.
    Failures,
    /// The caller has failed and will never take an answer.
    None,
}

impl<T: Transport> RequestExchange<T> {
    pub fn new(transport: T, server: SegmentServer) -> Self {
        Self {
            deadline: Deadline::start(&transport),
            transport,
            server,
            barrier: BarrierState::new(BARRIER),
            next: 0,
            asked: BTreeMap::new(),
            asked_bytes: 0,
            answers: BTreeMap::new(),
            replies: BTreeMap::new(),
            replies_bytes: 0,
        }
    }

    /// The id of the next request.
    pub fn next_id(&self) -> u64 {
        self.next
    }

    /// Sends `request` to `to` and returns its id; while too many are unanswered, it waits and
    /// answers others.
    pub fn ask(&mut self, to: Rank, request: RankRequest) -> Result<u64> {
        let id = self.next;
        self.next += 1;
        let kept = match request {
            RankRequest::Put(_) => KeptAnswers::Failures,
            _ => KeptAnswers::All,
        };
        if to == self.transport.rank() {
            let answer = self.server.answer(request);
            self.keep_answer(id, kept, answer);
            return Ok(id);
        }
        let body_bytes_max = request.answer_bytes_max();
        let message = request.encode(id);
        let bytes = message.len();
        self.wait_until("answers to earlier requests", |own| {
            own.asked.is_empty()
                || (own.asked_bytes + bytes <= ASKED_BYTES_MAX && own.asked.len() < ASKED_MAX)
        })?;
        self.send_request(to, message)?;
        self.asked.insert(id, OpenRequest { to, bytes, kept, body: Vec::new(), body_bytes_max });
        self.asked_bytes += bytes;
        Ok(id)
    }

    fn send_request(&mut self, to: Rank, message: Vec<u8>) -> Result<()> {
        self.deadline = Deadline::start(&self.transport);
        let mut sent = self.transport.try_send(to, REQUEST, message)?;
        while let SendOutcome::Full(message) = sent {
            self.step(&[], LOOK)?;
            self.deadline.check(&self.transport, || format!("{to} takes no requests"))?;
            sent = self.transport.try_send(to, REQUEST, message)?;
        }
        Ok(())
    }

    /// Sends all `requests` and returns their answers in order. If one fails, drops the answers to
    /// the others, including those still to come.
    pub fn ask_each(
        &mut self,
        requests: impl IntoIterator<Item = (Rank, RankRequest)>,
    ) -> Result<Vec<RankReply>> {
        let first = self.next;
        let asked =
            requests.into_iter().try_for_each(|(to, request)| self.ask(to, request).map(drop));
        let end = self.next;
        let answers = asked.and_then(|()| (first..end).map(|id| self.answer(id)).collect());
        if answers.is_err() {
            self.forget(first, end);
        }
        answers
    }

    /// Drops the answers to requests `first` to before `end`, including those still to come.
    pub fn forget(&mut self, first: u64, end: u64) {
        for (_, asked) in self.asked.range_mut(first..end) {
            (asked.kept, asked.body) = (KeptAnswers::None, Vec::new());
        }
        self.answers.retain(|id, _| !(first..end).contains(id));
    }

    fn keep_answer(&mut self, id: u64, kept: KeptAnswers, answer: Result<RankReply>) {
        let is_kept = match kept {
            KeptAnswers::All => true,
            KeptAnswers::Failures => answer.is_err(),
            KeptAnswers::None => false,
        };
        if is_kept {
            self.answers.insert(id, answer);
        }
    }

    /// Waits for the answer to request `id`, which must not be a put.
    pub fn answer(&mut self, id: u64) -> Result<RankReply> {
        self.await_replies(id, id + 1)?;
        let what = || Error::new(Kind::Invalid, "the answer was already taken");
        self.answers.remove(&id).ok_or_else(what)?
    }

    /// Waits until requests `first` to before `end` are answered.
    pub fn await_replies(&mut self, first: u64, end: u64) -> Result<()> {
        self.wait_until("an answer", |own| own.asked.range(first..end).next().is_none())
    }

    /// As [`RequestExchange::await_replies`], for puts; returns the first failure among them.
    pub fn await_puts(&mut self, first: u64, end: u64) -> Result<()> {
        self.await_replies(first, end)?;
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

    /// Answers other ranks for up to `wait`.
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

    /// Sends queued replies and takes one message: answers it, or returns it if it is on one of
    /// `channels`.
    fn step(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
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
                let (id, request) = RankRequest::decode(message.from, &message.bytes)?;
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
        let mut outcome = Ok(());
        for (to, waiting) in &mut self.replies {
            while let Some(part) = waiting.pop_front() {
                let bytes = part.len();
                match self.transport.try_send(*to, REPLY, part) {
                    Ok(SendOutcome::Done) => self.replies_bytes -= bytes,
                    Ok(SendOutcome::Full(part)) => {
                        waiting.push_front(part);
                        break;
                    }
                    Err(error) => {
                        // That rank takes none of its other replies either. They must not count any
                        // longer, or this rank would stop taking requests.
                        let behind = waiting.drain(..).map(|part| part.len()).sum::<usize>();
                        self.replies_bytes -= bytes + behind;
                        outcome = outcome.and(Err(error));
                    }
                }
            }
        }
        self.replies.retain(|_, waiting| !waiting.is_empty());
        outcome
    }

    fn take_reply(&mut self, message: &ReceivedMessage) -> Result<()> {
        let from = message.from;
        let part = decode_part(from, &message.bytes)?;
        self.deadline = Deadline::start(&self.transport);
        let asked = self.asked.get_mut(&part.id).filter(|asked| asked.to == from);
        let Some(asked) = asked else {
            let what = format!("{from} sent an unexpected reply");
            return Err(Error::new(Kind::Corrupt, what));
        };
        if asked.kept != KeptAnswers::None {
            if asked.body.len() + part.body.len() > asked.body_bytes_max {
                return Err(Error::new(Kind::TooLarge, format!("a reply of {from}")));
            }
            asked.body.extend_from_slice(part.body);
        }
        if let Some(succeeded) = part.end
            && let Some(asked) = self.asked.remove(&part.id)
        {
            self.asked_bytes -= asked.bytes;
            let answer = decode_body(from, succeeded, &asked.body);
            self.keep_answer(part.id, asked.kept, answer);
        }
        Ok(())
    }
}

impl<T: Transport> Transport for RequestExchange<T> {
    fn rank(&self) -> Rank {
        self.transport.rank()
    }

    fn nodes(&self) -> &Arc<NodeMap> {
        self.transport.nodes()
    }

    fn try_send(&mut self, to: Rank, channel: Channel, bytes: Vec<u8>) -> Result<SendOutcome> {
        self.transport.try_send(to, channel, bytes)
    }

    fn receive(&mut self, channels: &[Channel], wait: Duration) -> Result<Option<ReceivedMessage>> {
        self.step(channels, wait)
    }

    fn barrier(&mut self) -> Result<()> {
        let mut barrier = std::mem::replace(&mut self.barrier, BarrierState::new(BARRIER));
        let done = barrier.wait(self, |_, _| false);
        self.barrier = barrier;
        done
    }

    fn counters(&self) -> TransportCounters {
        self.transport.counters()
    }

    fn deadline(&self) -> Duration {
        self.transport.deadline()
    }

    fn monotonic_ns(&self) -> u64 {
        self.transport.monotonic_ns()
    }
}

#[cfg(test)]
mod tests {
    use esker_base::store::MemoryStore;
    use esker_comm::threads;

    use super::*;
    use crate::slices::SliceMap;

    /// Symptom: a rank's memory grew with every call to several owners of which one failed.
    /// Cause: the call returned at the first failure, and no caller took the other answers.
    /// Fix: the exchange drops them, whenever they arrive.
    #[test]
    fn a_failed_call_leaves_no_answers_behind() {
        let done = threads::run(3, 3, |transport| {
            let map = Arc::new(SliceMap::new(transport.nodes(), 3, 1 << 20)?);
            let server =
                SegmentServer::new(transport.rank(), None, Arc::new(MemoryStore::new()), map);
            let mut exchange = RequestExchange::new(transport, server);
            exchange.barrier()?;
            if exchange.rank() == Rank(0) {
                // A rank without an index answers all other requests with an error.
                let fetch = |to| (Rank(to), RankRequest::Fetch(Vec::new()));
                for failing in 0..3 {
                    let bad = (Rank(failing), RankRequest::Index(9));
                    let all = [fetch(1), fetch(0), bad, fetch(2), fetch(1)];
                    let error = exchange.ask_each(all).expect_err("one has no index");
                    assert!(error.to_string().contains("is not a server"), "{error}");
                }
                let next = exchange.next_id();
                exchange.await_replies(0, next)?;
                assert!(exchange.answers.is_empty(), "{:?}", exchange.answers);
                assert_eq!((exchange.asked.len(), exchange.asked_bytes), (0, 0));
                assert_eq!(exchange.ask_each([fetch(2), fetch(0)])?.len(), 2);
            }
            exchange.barrier()
        });
        done.unwrap_or_else(|error| panic!("{error:?}"));
    }

    /// Symptom: a rank took no more requests after others had left without taking their answers.
    /// Cause: replies that could not be sent counted as waiting forever.
    /// Fix: they are dropped.
    #[test]
    fn replies_to_a_rank_that_has_left_do_not_count() {
        let done = threads::run(2, 2, |transport| {
            let map = Arc::new(SliceMap::new(transport.nodes(), 2, 1 << 20)?);
            let server =
                SegmentServer::new(transport.rank(), None, Arc::new(MemoryStore::new()), map);
            let mut exchange = RequestExchange::new(transport, server);
            exchange.barrier()?;
            if exchange.rank() == Rank(1) {
                let _ = exchange.ask(Rank(0), RankRequest::Index(9))?;
                let _ = exchange.ask(Rank(0), RankRequest::Index(9))?;
                return Ok(());
            }
            // Wait until it has left, before answering it.
            while exchange.transport.try_send(Rank(1), BARRIER, Vec::new()).is_ok() {
                std::thread::yield_now();
            }
            for _ in 0..2 {
                let error = exchange.step(&[], LOOK).expect_err("nobody takes the reply");
                assert!(error.to_string().contains("has left"), "{error}");
                assert!(exchange.replies_bytes == 0 && exchange.replies.is_empty());
            }
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{error:?}"));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Router: small records between all ranks of a job, gathered into batches by next hop.
//!
//! Path of a record: [`Router::push`] → the batch of its next hop (`route`) → once that is full,
//! a message → at the receiver, the sink or the batch of the next hop.
//! [`Router::flush`] ends an epoch; `flush.rs` explains why no record is left behind.
//! Memory: one batch for each next hop in use, and the transport's buffers; [`RouterCounters`]
//! account for the router's share.
//! Concurrency: that of its transport, one thread.
//! Source: DeltaFS thesis §5.3.3. Deviation: the thesis uses RPCs over shared memory and the
//! network with a write-back buffer for each; here every hop is a message of the transport.

mod batch;
mod flush;
pub mod model;
mod route;

use std::time::Duration;

use esker_base::{Error, Kind, Result};

use self::batch::{BatchFlags, BatchHeader, HEADER_BYTES, RECORD_OVERHEAD_MAX};
pub use self::route::Routing;
use self::route::{FIRST, NextHops};
use crate::transport::{
    Deadline, LOOK, MESSAGE_BYTES_MAX, ReceivedMessage, SendOutcome, Transport,
};
use crate::{Channel, Rank};

/// Largest record, in bytes.
pub const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - HEADER_BYTES - RECORD_OVERHEAD_MAX;

/// Default size at which a batch is sent, in bytes: the thesis' RPC size (§5.3.3).
pub const BATCH_BYTES: usize = 32 << 10;

/// Messages received after a batch is sent, so that a rank that only pushes keeps up with records
/// pushed to it: each record takes at most three hops.
const MESSAGES_PER_BATCH: usize = 4;

/// Most messages received by one poll, so that it ends while others continue sending.
const MESSAGES_PER_POLL: usize = 64;

/// Empty buffers kept for the next batches.
const SPARE_BUFFERS_MAX: usize = 4;

/// Options of a router; all ranks give the same.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// The routing of records.
    pub routing: Routing,
    /// Size at which a batch is sent; [`BATCH_BYTES`] by default. A longer record goes alone.
    pub batch_bytes: usize,
    /// The length of every record, if all have the same: records then travel without their length.
    pub record_bytes: Option<u32>,
    /// The first of three consecutive channels used by this router alone; [`Channel::ROUTER`] by
    /// default.
    pub channel: Channel,
}

impl RouterOptions {
    /// Options for records of any length by `routing`, with the default batch size and channels.
    #[must_use]
    pub fn new(routing: Routing) -> Self {
        Self { routing, batch_bytes: BATCH_BYTES, record_bytes: None, channel: Channel::ROUTER }
    }
}

/// Totals of a router since its creation, and its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounters {
    /// Records pushed at this rank.
    pub pushed: u64,
    /// Records delivered to this rank's sink.
    pub delivered: u64,
    /// Records between two other ranks that passed through this one.
    pub forwarded: u64,
    /// Batches sent.
    pub batches: u64,
    /// Next hops for which a batch was ever begun.
    pub next_hops: u64,
    /// Bytes of batches and of the router's tables now, excluding the node map.
    pub memory_bytes: u64,
    /// High-water mark of `memory_bytes`.
    pub memory_bytes_max: u64,
}

/// Sends small records between all ranks.
///
/// Every call that may deliver takes a sink: `sink(from, record)` is called for each record for
/// this rank; records of one origin arrive in the order in which it pushed them. Any failure,
/// including one of the sink, closes the router.
#[derive(Debug)]
pub struct Router<T> {
    transport: T,
    me: Rank,
    options: RouterOptions,
    route: NextHops,
    /// By slot; see [`NextHops`].
    batches: Vec<HopBatch>,
    /// By hop.
    hop_flags: [BatchFlags; 3],
    channels: [Channel; 3],
    /// By slot of the sender ([`NextHops::reverse`]).
    arrivals: Vec<HopArrivals>,
    /// By hop: senders whose last batch of this epoch has not arrived.
    awaited: [usize; 3],
    epoch: u32,
    spares: Vec<Vec<u8>>,
    counters: RouterCounters,
    has_failed: bool,
}

/// Records for one next hop.
#[derive(Debug, Default)]
struct HopBatch {
    /// Empty, or begins with room for the header.
    bytes: Vec<u8>,
    records: u32,
    /// Records sent to this next hop in this epoch before these.
    records_before: u64,
    /// True once there were any.
    is_used: bool,
}

/// Records received from one sender on one hop in this epoch.
#[derive(Clone, Copy, Debug, Default)]
struct HopArrivals {
    records: u64,
    is_over: bool,
}

impl<T: Transport> Router<T> {
    /// Creates a router over `transport`; every rank creates one, with the same options. Sends
    /// nothing.
    ///
    /// # Errors
    /// `Invalid` if a batch or record would exceed a message, or if the channels do not exist.
    pub fn new(transport: T, options: RouterOptions) -> Result<Self> {
        let record_bytes = options.record_bytes.unwrap_or(0) as usize;
        let fits = options.batch_bytes <= MESSAGE_BYTES_MAX && record_bytes <= RECORD_BYTES_MAX;
        if !fits || options.channel > Channel(Channel::MAX.0 - 2) {
            let what = format!("batches or records that do not fit a message: {options:?}");
            return Err(Error::new(Kind::Invalid, what));
        }
        let route = NextHops::new(transport.nodes(), options.routing, transport.rank());
        let record_bytes = options.record_bytes;
        let many = options.routing == Routing::ThreeHop;
        let mut router = Self {
            me: transport.rank(),
            transport,
            batches: (0..route.slot_count()).map(|_| HopBatch::default()).collect(),
            arrivals: vec![HopArrivals::default(); route.slot_count()],
            hop_flags: [
                BatchFlags { has_from: false, has_to: true, record_bytes },
                BatchFlags { has_from: true, has_to: true, record_bytes },
                BatchFlags { has_from: many, has_to: false, record_bytes },
            ],
            channels: [0, 1, 2].map(|hop| Channel(options.channel.0 + hop)),
            awaited: [0; 3],
            options,
            route,
            epoch: 0,
            spares: Vec::new(),
            counters: RouterCounters::default(),
            has_failed: false,
        };
        let tables = router.route.bytes()
            + router.batches.capacity() * size_of::<HopBatch>()
            + router.arrivals.capacity() * size_of::<HopArrivals>();
        router.hold(tables);
        router.begin_epoch(0);
        Ok(router)
    }

    /// The transport, for use of other channels.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Ends the router and returns its transport.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// Totals so far.
    pub fn counters(&self) -> RouterCounters {
        self.counters
    }

    /// Sends `record` to `to`, eventually; a record for this rank goes to `sink` at once. From time
    /// to time receives records of other ranks.
    ///
    /// # Errors
    /// `Unavailable` names a rank that is lost or took nothing before the deadline; `Invalid` if
    /// there is no such rank or the length differs from that in the options; `TooLarge` over
    /// [`RECORD_BYTES_MAX`]; `Corrupt` for a message that is not a router's; errors of `sink`.
    /// After any error but `Invalid` and `TooLarge` all calls fail with `Closed`.
    #[inline]
    pub fn push<S>(&mut self, to: Rank, record: &[u8], sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        self.check_push(to, record)?;
        self.counters.pushed += 1;
        let done = self.pass_on((self.me, to), record, None, sink);
        self.record_failure(done)
    }

    /// Receives records of other ranks, waiting up to `wait` for the first message. Returns the
    /// number of messages.
    ///
    /// # Errors
    /// As [`Router::push`].
    pub fn poll<S>(&mut self, wait: Duration, sink: &mut S) -> Result<usize>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        self.check_open()?;
        let done = self.poll_from(FIRST, wait, MESSAGES_PER_POLL, sink);
        self.record_failure(done)
    }

    #[inline]
    fn check_push(&self, to: Rank, record: &[u8]) -> Result<()> {
        self.check_open()?;
        let fixed = self.options.record_bytes.map(|bytes| bytes as usize);
        if to.0 < self.transport.size()
            && record.len() <= RECORD_BYTES_MAX
            && fixed.is_none_or(|bytes| bytes == record.len())
        {
            return Ok(());
        }
        let kind = if record.len() > RECORD_BYTES_MAX { Kind::TooLarge } else { Kind::Invalid };
        let what = format!("push a record of {} bytes to {to}", record.len());
        Err(Error::new(kind, format!("{what}: {} ranks, {fixed:?} bytes", self.transport.size())))
    }

    #[inline]
    fn check_open(&self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        Err(Error::new(Kind::Closed, "an earlier failure closed the router"))
    }

    #[inline]
    fn record_failure<R>(&mut self, done: Result<R>) -> Result<R> {
        self.has_failed |= done.is_err();
        done
    }

    /// Delivers a record, or adds it to a batch; `came_over` is the hop that it has taken.
    #[inline]
    fn pass_on<S>(
        &mut self,
        (from, to): (Rank, Rank),
        record: &[u8],
        came_over: Option<u8>,
        sink: &mut S,
    ) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        if to == self.me {
            self.counters.delivered += 1;
            return sink(from, record);
        }
        let slot = self.route.slot(to);
        let (hop, _) = self.route.next(slot);
        if let Some(before) = came_over {
            if hop <= before || self.route.is_unused(slot) {
                let what =
                    format!("a record for {to} reached {}, which is not on its route", self.me);
                return Err(Error::new(Kind::Corrupt, what));
            }
            self.counters.forwarded += 1;
        }
        let flags = self.hop_flags[hop as usize];
        let more = flags.encoded_bytes(record.len());
        let held = self.batches[slot].bytes.len();
        let is_full = held > HEADER_BYTES && held + more > self.options.batch_bytes;
        if is_full {
            self.send_batch(slot, false, sink)?;
        }
        if self.batches[slot].bytes.is_empty() {
            self.begin_batch(slot, more);
        }
        let batch = &mut self.batches[slot];
        flags.put(&mut batch.bytes, from, to, record);
        batch.records += 1;
        // Polled last, since received records may go into the same batch.
        if is_full && came_over.is_none() {
            self.poll_from(FIRST, Duration::ZERO, MESSAGES_PER_BATCH, sink)?;
        }
        Ok(())
    }

    #[cold]
    fn begin_batch(&mut self, slot: usize, more: usize) {
        let capacity = self.options.batch_bytes.max(HEADER_BYTES + more);
        let mut bytes = match self.spares.pop_if(|spare| spare.capacity() >= capacity) {
            Some(spare) => spare,
            None => {
                self.hold(capacity);
                Vec::with_capacity(capacity)
            }
        };
        bytes.clear();
        bytes.resize(HEADER_BYTES, 0);
        let batch = &mut self.batches[slot];
        self.counters.next_hops += u64::from(!batch.is_used);
        batch.is_used = true;
        batch.bytes = bytes;
    }

    /// Sends the batch of `slot`. While the channel is full it receives messages of this hop and
    /// later ones: these wait only for later hops.
    #[cold]
    fn send_batch<S>(&mut self, slot: usize, is_last: bool, sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        let (hop, next) = self.route.next(slot);
        if self.batches[slot].bytes.is_empty() {
            self.begin_batch(slot, 0);
        }
        let epoch = self.epoch;
        let batch = &mut self.batches[slot];
        let mut bytes = std::mem::take(&mut batch.bytes);
        let records = std::mem::take(&mut batch.records);
        batch.records_before += u64::from(records);
        let records_so_far = batch.records_before;
        BatchHeader { epoch, hop, is_last, records, records_so_far }
            .write(&self.hop_flags[hop as usize], &mut bytes);
        self.counters.batches += 1;
        let capacity = bytes.capacity();
        let mut deadline = Deadline::start(&self.transport);
        let channel = self.channels[hop as usize];
        let mut sent = self.transport.try_send(next, channel, bytes)?;
        while let SendOutcome::Full(bytes) = sent {
            if self.poll_from(hop, LOOK, 1, sink)? > 0 {
                deadline = Deadline::start(&self.transport);
            }
            sent = self.transport.try_send(next, channel, bytes)?;
            deadline.check(&self.transport, || format!("{next} takes no batches"))?;
        }
        self.release(capacity);
        Ok(())
    }

    /// Receives up to `messages_max` messages of `hop` and later ones.
    fn poll_from<S>(
        &mut self,
        hop: u8,
        wait: Duration,
        messages_max: usize,
        sink: &mut S,
    ) -> Result<usize>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        let first = hop.max(*self.options.routing.hops().start()) as usize;
        // Later hops first: they free room.
        let mut channels = self.channels;
        channels.reverse();
        let channels = &channels[..channels.len() - first];
        let mut taken = 0;
        while taken < messages_max {
            let wait = if taken == 0 { wait } else { Duration::ZERO };
            let Some(message) = self.transport.receive(channels, wait)? else { break };
            self.take_in(message, sink)?;
            taken += 1;
        }
        Ok(taken)
    }

    fn take_in<S>(&mut self, message: ReceivedMessage, sink: &mut S) -> Result<()>
    where
        S: FnMut(Rank, &[u8]) -> Result<()> + ?Sized,
    {
        let sender = message.from;
        let hop = u8::try_from(message.channel.0 - self.channels[0].0).expect("one of three");
        let flags = self.hop_flags[hop as usize];
        let place = |error: Error| error.within(format!("a message of {sender}"));
        let (header, mut records) = BatchHeader::read(&flags, &message.bytes).map_err(place)?;
        self.count_arrival(sender, hop, &header).map_err(place)?;
        while let Some((from, to, record)) = records.next().map_err(place)? {
            let (from, to) = (from.unwrap_or(sender), to.unwrap_or(self.me));
            self.check_members(from, to).map_err(place)?;
            self.pass_on((from, to), record, Some(hop), sink)?;
        }
        let spare = message.bytes;
        let batch_bytes = self.options.batch_bytes;
        let fits = (batch_bytes..=2 * batch_bytes).contains(&spare.capacity());
        if fits && self.spares.len() < SPARE_BUFFERS_MAX {
            self.hold(spare.capacity());
            self.spares.push(spare);
        }
        Ok(())
    }

    /// Checks that a batch is the next of its sender, and counts its records.
    fn count_arrival(&mut self, sender: Rank, hop: u8, header: &BatchHeader) -> Result<()> {
        let slot = self.route.reverse(hop, sender);
        let arrival = slot.map(|slot| &mut self.arrivals[slot]);
        let arrival = arrival.filter(|arrival| !arrival.is_over);
        let (Some(arrival), true) = (arrival, header.hop == hop && header.epoch == self.epoch)
        else {
            let what = format!("unexpected {header:?} on hop {hop} of epoch {}", self.epoch);
            return Err(Error::new(Kind::Corrupt, what));
        };
        arrival.records += u64::from(header.records);
        if arrival.records != header.records_so_far {
            let what =
                format!("{} records came, {} were sent", arrival.records, header.records_so_far);
            return Err(Error::new(Kind::Corrupt, what));
        }
        if header.is_last {
            arrival.is_over = true;
            self.awaited[hop as usize] -= 1;
        }
        Ok(())
    }

    #[inline]
    fn check_members(&self, from: Rank, to: Rank) -> Result<()> {
        let size = self.transport.size();
        if from.0 < size && to.0 < size {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, format!("a record from {from} to {to} of {size} ranks")))
    }

    fn hold(&mut self, bytes: usize) {
        let counters = &mut self.counters;
        counters.memory_bytes += bytes as u64;
        counters.memory_bytes_max = counters.memory_bytes_max.max(counters.memory_bytes);
    }

    fn release(&mut self, bytes: usize) {
        self.counters.memory_bytes -= bytes as u64;
    }
}

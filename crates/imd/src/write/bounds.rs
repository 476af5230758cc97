// SPDX-License-Identifier: Apache-2.0
//! Bounds: the range of keys of each partition of an ordered directory, agreed on by all ranks.
//!
//! Every rank samples the keys that it appends. In the first epoch records wait until one rank's
//! share of memory is full, or the epoch ends; then rank 0 gathers all samples and cuts the keys so
//! that each partition gets an equal number. After an epoch in which some partition got much more
//! than its share, rank 0 makes new cuts from that epoch's samples.
//!
//! ```text
//! rank that is full      rank 0                          other ranks, at their next append or poll
//!     sample          →
//!                        call, to all (once)          →
//!                                                     ←  sample
//!                        bounds, to all, when it has all samples
//! ```
//! A full rank therefore waits for one append or poll of each other rank, not until they are full
//! as well. Only a rank that is full, or that ends its epoch, blocks; meanwhile it accepts messages
//! of others.
//! Invariant: rank 0 calls only if a sample has keys, so that the ranks it calls receive bounds.
//! Source: CARP (Jain et al., "CARP: Range Query-Optimized Indexing for Streaming Data", SC 2024),
//! which also renegotiates within an epoch.

use std::time::Duration;

use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Error, Kind, Result};
use esker_comm::{Channel, Deadline, Rank, Router, Transport};

use crate::directory::PartitionBounds;
use crate::partition::key_prefix;

/// Samples to rank 0.
const SAMPLES: Channel = Channel(0x11);

/// Calls for samples, and bounds; from rank 0.
const BOUNDS: Channel = Channel(0x12);

/// First byte of a message from rank 0: a call for samples, or bounds.
const CALL: u8 = 1;
const CUTS: u8 = 2;

/// Records that wait between two checks for a call: enough that the checks take little time.
const RECORDS_PER_CHECK: usize = 256;

/// Keys that all ranks sample together, if memory permits: this many, or [`SAMPLES_EACH`] a rank.
const SAMPLES_IN_ALL: u64 = 64 << 10;
const SAMPLES_EACH: u64 = 64;

/// Maximum number of keys that a rank samples.
const SAMPLE_MAX: u64 = 4 << 10;

/// Memory of a sampled key on rank 0, which gathers them.
const SAMPLE_BYTES: u64 = size_of::<(u64, f64)>() as u64;

/// Rank 0 makes new cuts if the fullest partition has more than this percentage of its share.
const SKEW_PERCENT_MAX: u64 = 125;

/// Time for which a waiting rank listens for messages at once.
const LOOK: Duration = Duration::from_millis(1);

/// One rank's part in the agreement.
#[derive(Debug)]
pub(super) struct BoundsBalancer {
    partitions: u32,
    me: u32,
    bounds: Option<PartitionBounds>,
    waiting: WaitingRecords,
    waiting_bytes_max: usize,
    sample: KeySample,
    /// True once this rank has sent its sample for the first bounds.
    has_sent: bool,
    /// On rank 0: the samples for the first bounds.
    census: KeyCensus,
    history: Vec<PartitionBounds>,
}

/// Records that wait for bounds.
#[derive(Debug, Default)]
pub(super) struct WaitingRecords {
    bytes: Vec<u8>,
    /// Lengths of keys and values.
    lengths: Vec<(u8, u32)>,
}

impl WaitingRecords {
    /// Keys and values, in order of arrival.
    pub(super) fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut at = 0;
        self.lengths.iter().map(move |&(key, value)| {
            let split = at + usize::from(key);
            let (start, end) = (at, split + value as usize);
            at = end;
            (&self.bytes[start..split], &self.bytes[split..end])
        })
    }
}

/// A uniform sample of the keys that a rank appended.
#[derive(Debug, Default)]
struct KeySample {
    prefixes: Vec<u64>,
    max: usize,
    seen: u64,
    /// State of a small generator; the choice of keys affects only balance.
    state: u64,
}

impl KeySample {
    fn add(&mut self, prefix: u64) {
        self.seen += 1;
        if self.prefixes.len() < self.max {
            self.prefixes.push(prefix);
            return;
        }
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = ((u128::from(self.state) * u128::from(self.seen)) >> 64) as u64;
        if let Some(place) = usize::try_from(at).ok().and_then(|at| self.prefixes.get_mut(at)) {
            *place = prefix;
        }
    }

    /// Encodes the message to rank 0: numbers of records received and appended here, and the
    /// sample.
    fn encode(&self, received: u64) -> Vec<u8> {
        let mut message = received.to_le_bytes().to_vec();
        message.extend_from_slice(&self.seen.to_le_bytes());
        for prefix in &self.prefixes {
            message.extend_from_slice(&prefix.to_le_bytes());
        }
        message
    }

    /// Starts a new sample.
    fn clear(&mut self) {
        self.prefixes.clear();
        self.seen = 0;
    }
}

/// Result of a check for messages about the first bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgreementStep {
    Idle,
    Moved,
    /// All ranks have sent samples, and rank 0 has announced the bounds.
    Agreed,
}

/// Encodes the announcement of `bounds`.
fn encode_cuts(bounds: Option<&PartitionBounds>) -> Vec<u8> {
    let mut message = vec![CUTS];
    let starts = bounds.map(|bounds| bounds.starts.as_slice()).unwrap_or_default();
    message.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
    message
}

/// The samples and counts of all ranks.
#[derive(Debug, Default)]
struct KeyCensus {
    /// Number of ranks whose samples have arrived.
    ranks: u32,
    received: u64,
    received_max: u64,
    appended: u64,
    /// Prefixes, each with the number of records it stands for.
    prefixes: Vec<(u64, f64)>,
}

impl KeyCensus {
    fn add(&mut self, message: &[u8]) -> Result<(), WireDamage> {
        let mut input = WireInput::new(message);
        let (received, seen) = (input.u64()?, input.u64()?);
        self.ranks += 1;
        self.received = self.received.saturating_add(received);
        self.received_max = self.received_max.max(received);
        self.appended = self.appended.saturating_add(seen);
        let count = input.left() / 8;
        let weight = seen as f64 / count.max(1) as f64;
        for _ in 0..count {
            self.prefixes.push((input.u64()?, weight));
        }
        input.end()
    }

    /// True if some partition got much more than its share.
    fn is_skewed(&self, partitions: u32) -> bool {
        let partitions = u128::from(partitions);
        u128::from(self.received_max) * partitions * 100
            > u128::from(self.received) * u128::from(SKEW_PERCENT_MAX)
    }

    /// Bounds that give each partition an equal number of the sampled records.
    fn cut(mut self, partitions: u32) -> PartitionBounds {
        self.prefixes.sort_unstable_by_key(|prefix| prefix.0);
        let total: f64 = self.prefixes.iter().map(|prefix| prefix.1).sum();
        let mut starts = Vec::new();
        let (mut before, mut next) = (0.0, 1);
        for (prefix, weight) in self.prefixes {
            while next < partitions && before >= total * f64::from(next) / f64::from(partitions) {
                starts.push(prefix);
                next += 1;
            }
            before += weight;
        }
        starts.resize(partitions as usize - 1, u64::MAX);
        PartitionBounds { starts }
    }
}

impl BoundsBalancer {
    /// Creates the balancer of rank `me`. Half of `memory_bytes` is for samples, a quarter for
    /// waiting records, whose buffers can grow to twice that.
    pub(super) fn new(partitions: u32, me: u32, memory_bytes: u64) -> Self {
        let ranks = u64::from(partitions);
        let all = SAMPLES_IN_ALL.max(SAMPLES_EACH * ranks).min(memory_bytes / 2 / SAMPLE_BYTES);
        let max = (all / ranks).clamp(1, SAMPLE_MAX) as usize;
        Self {
            partitions,
            me,
            bounds: (partitions == 1).then(PartitionBounds::default),
            waiting: WaitingRecords::default(),
            waiting_bytes_max: usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX),
            sample: KeySample { max, state: u64::from(me) + 1, ..KeySample::default() },
            has_sent: false,
            census: KeyCensus::default(),
            history: Vec::new(),
        }
    }

    /// The partition of a record; `None` while there are no bounds, and then the record waits.
    pub(super) fn partition_of(&mut self, key: &[u8], value: &[u8]) -> Option<u32> {
        let prefix = key_prefix(key);
        self.sample.add(prefix);
        if let Some(bounds) = &self.bounds {
            return Some(bounds.partition(prefix));
        }
        self.waiting.bytes.extend_from_slice(key);
        self.waiting.bytes.extend_from_slice(value);
        let key = u8::try_from(key.len()).expect("keys are checked on append");
        let value = u32::try_from(value.len()).expect("values are checked on append");
        self.waiting.lengths.push((key, value));
        None
    }

    /// True once there are bounds.
    pub(super) fn has_bounds(&self) -> bool {
        self.bounds.is_some()
    }

    /// True if no more records can wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.bytes.len() + self.waiting.lengths.len() * 8 >= self.waiting_bytes_max
    }

    /// While records wait: true if [`BoundsBalancer::progress`] is due.
    pub(super) fn is_progress_due(&self) -> bool {
        self.waiting.lengths.len().is_multiple_of(RECORDS_PER_CHECK)
    }

    /// The partition of a record that has waited.
    pub(super) fn partition(&self, key: &[u8]) -> u32 {
        let bounds = self.bounds.as_ref().expect("records wait until there are bounds");
        bounds.partition(key_prefix(key))
    }

    /// Agrees with all ranks on the first bounds and returns the waiting records; blocks until
    /// then. `take_in` accepts messages of other ranks, which may have agreed already, and returns
    /// whether there were any.
    pub(super) fn agree<T: Transport>(
        &mut self,
        router: &mut Router<T>,
        take_in: &mut dyn FnMut(&mut Router<T>) -> Result<bool>,
    ) -> Result<WaitingRecords> {
        self.send_sample(router.transport())?;
        let mut deadline = Deadline::start(router.transport());
        loop {
            match self.step(router.transport(), LOOK)? {
                AgreementStep::Agreed => return Ok(std::mem::take(&mut self.waiting)),
                AgreementStep::Moved => deadline = Deadline::start(router.transport()),
                AgreementStep::Idle => {}
            }
            if take_in(router)? {
                deadline = Deadline::start(router.transport());
            }
            let me = self.me;
            deadline.check(router.transport(), || {
                format!(
                    "rank {me}: the samples of all ranks for partition bounds did not come in time"
                )
            })?;
        }
    }

    /// Takes part in an agreement that another rank has begun, without blocking; returns the
    /// waiting records once there are bounds.
    pub(super) fn progress<T: Transport>(
        &mut self,
        transport: &mut T,
    ) -> Result<Option<WaitingRecords>> {
        loop {
            match self.step(transport, Duration::ZERO)? {
                AgreementStep::Agreed => return Ok(Some(std::mem::take(&mut self.waiting))),
                AgreementStep::Moved => {}
                AgreementStep::Idle => return Ok(None),
            }
        }
    }

    /// Sends this rank's sample for the first bounds, once.
    fn send_sample<T: Transport>(&mut self, transport: &mut T) -> Result<()> {
        if !std::mem::replace(&mut self.has_sent, true) {
            // Before there are bounds the count of received records means nothing. The sample
            // continues.
            transport.send(Rank(0), SAMPLES, self.sample.encode(0))?;
        }
        Ok(())
    }

    /// Handles one message about the first bounds, waiting up to `wait` for it.
    fn step<T: Transport>(&mut self, transport: &mut T, wait: Duration) -> Result<AgreementStep> {
        let channels = if self.me == 0 { &[BOUNDS, SAMPLES][..] } else { &[BOUNDS] };
        let Some(message) = transport.receive(channels, wait)? else {
            return Ok(AgreementStep::Idle);
        };
        if message.channel == SAMPLES {
            let was_empty = self.census.appended == 0;
            let name = format!("a sample of {}", message.from);
            self.census.add(&message.bytes).map_err(|bad| bad.of(&name, 0))?;
            if was_empty && self.census.appended > 0 {
                self.send_to_all(transport, &[CALL])?;
            }
            if self.census.ranks == self.partitions {
                let bounds = std::mem::take(&mut self.census).cut_if_any(self.partitions);
                self.send_to_all(transport, &encode_cuts(bounds.as_ref()))?;
            }
            return Ok(AgreementStep::Moved);
        }
        if message.bytes == [CALL] {
            self.send_sample(transport)?;
            return Ok(AgreementStep::Moved);
        }
        self.take_cuts(&message.bytes)?;
        if self.bounds.is_none() && !self.waiting.lengths.is_empty() {
            let what = "rank 0 sent no bounds, though this rank has records that wait for them";
            return Err(Error::new(Kind::Corrupt, what));
        }
        self.has_sent = false;
        Ok(AgreementStep::Agreed)
    }

    /// Ends an epoch in which this rank received `received` records.
    pub(super) fn end_epoch<T: Transport>(
        &mut self,
        transport: &mut T,
        received: u64,
    ) -> Result<()> {
        let none = || PartitionBounds { starts: vec![u64::MAX; self.partitions as usize - 1] };
        self.history.push(self.bounds.clone().unwrap_or_else(none));
        if self.partitions == 1 {
            return Ok(());
        }
        transport.send(Rank(0), SAMPLES, self.sample.encode(received))?;
        self.sample.clear();
        if self.me == 0 {
            let mut census = KeyCensus::default();
            for _ in 0..self.partitions {
                let message = transport.receive_soon(&[SAMPLES], "the sample of a rank")?;
                let name = format!("a sample of {}", message.from);
                census.add(&message.bytes).map_err(|bad| bad.of(&name, 0))?;
            }
            let keeps = self.bounds.is_some() && !census.is_skewed(self.partitions);
            let bounds = if keeps { None } else { census.cut_if_any(self.partitions) };
            let bounds = bounds.or_else(|| self.bounds.clone());
            self.send_to_all(transport, &encode_cuts(bounds.as_ref()))?;
        }
        let message = transport.receive_soon(&[BOUNDS], "the bounds of partitions")?;
        self.take_cuts(&message.bytes)
    }

    /// Sends `message` from rank 0 to all ranks, itself included.
    fn send_to_all<T: Transport>(&self, transport: &mut T, message: &[u8]) -> Result<()> {
        let mut ranks = Rank::all(self.partitions);
        ranks.try_for_each(|rank| transport.send(rank, BOUNDS, message.to_vec()))
    }

    fn take_cuts(&mut self, message: &[u8]) -> Result<()> {
        let cuts = message.split_first().filter(|(kind, _)| **kind == CUTS);
        let Some((_, cuts)) = cuts else {
            return Err(Error::new(Kind::Corrupt, "rank 0 sent no bounds, although they were due"));
        };
        let (starts, rest) = cuts.as_chunks::<8>();
        let starts: Vec<u64> = starts.iter().map(|start| u64::from_le_bytes(*start)).collect();
        let whole = starts.len() == self.partitions as usize - 1 && starts.is_sorted();
        if !rest.is_empty() || !(whole || starts.is_empty()) {
            return Err(Error::new(Kind::Corrupt, "rank 0 sent invalid bounds"));
        }
        self.bounds = whole.then_some(PartitionBounds { starts });
        Ok(())
    }

    /// The bounds of each epoch.
    pub(super) fn into_history(self) -> Vec<PartitionBounds> {
        self.history
    }
}

impl KeyCensus {
    fn cut_if_any(self, partitions: u32) -> Option<PartitionBounds> {
        (self.appended > 0).then(|| self.cut(partitions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_give_each_partition_as_much() {
        let mut census = KeyCensus::default();
        for rank in 0..4_u64 {
            let mut sample = KeySample { max: 1000, state: rank + 1, ..KeySample::default() };
            // Most keys are small.
            (0..50_000_u64).for_each(|i| sample.add((i * 4 + rank).pow(3)));
            census.add(&sample.encode(7)).expect("a sample");
        }
        assert!(!census.is_skewed(4));
        let bounds = census.cut(8);
        let mut counts = [0_u32; 8];
        (0..200_000_u64).for_each(|i| counts[bounds.partition(i.pow(3)) as usize] += 1);
        assert!(counts.iter().all(|count| (20_000..30_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn one_key_over_and_over_can_be_cut() {
        let mut sample = KeySample { max: 10, state: 1, ..KeySample::default() };
        (0..100).for_each(|_| sample.add(5));
        let mut census = KeyCensus::default();
        census.add(&sample.encode(100)).expect("a sample");
        census.add(&KeySample::default().encode(0)).expect("a sample");
        assert!(census.is_skewed(2));
        let bounds = census.cut(3);
        assert!(bounds.starts.is_sorted() && bounds.starts.len() == 2);
    }
}

//! Barrier: in step k every rank tells the one 2^k above it that it has come, and waits for the one
//! 2^k below; after ⌈log2 n⌉ steps everybody has heard, by others, of everybody.
//!
//! ```text
//! n = 5, rank 0     step 0: → 1, ← 4     step 1: → 2, ← 3     step 2: → 4, ← 1
//! ```
//! Message: number of the barrier (u64), step (u8). Ranks below may be ahead by some steps, or by a
//! barrier; what comes early is kept, and is never more than two messages of each step.
//! Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.

use esker_base::{Error, Kind, Result};

use crate::transport::{Deadline, LOOK, Sent, Transport};
use crate::{Channel, Rank};

const MESSAGE_BYTES: usize = 9;

/// The state of a rank's barriers on one channel, for transports and for those who wrap one and have
/// more to do while they wait.
#[derive(Debug)]
pub struct Barrier {
    channel: Channel,
    number: u64,
    /// Number and step of what has come before its time.
    early: Vec<(u64, u8)>,
}

impl Default for Barrier {
    fn default() -> Self {
        Self::new(Channel::BARRIER)
    }
}

impl Barrier {
    /// No barrier was yet on `channel`, which all ranks give and nobody else uses.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self { channel, number: 0, early: Vec::new() }
    }

    /// Returns once every rank has called it as often as this one. `is_gone` says whether a rank has
    /// left the job.
    ///
    /// # Errors
    /// As [`Transport::barrier`].
    pub fn wait<T: Transport>(
        &mut self,
        transport: &mut T,
        is_gone: impl Fn(&mut T, Rank) -> bool,
    ) -> Result<()> {
        let (size, me) = (transport.size(), transport.rank());
        let number = self.number;
        self.number += 1;
        let mut step = 0_u8;
        while 1_u64 << step < u64::from(size) {
            let distance = 1_u32 << step;
            let above = Rank(wrap(u64::from(me.0) + u64::from(distance), size));
            let below = Rank(wrap(u64::from(me.0) + u64::from(size - distance), size));
            self.tell(transport, above, (number, step))?;
            self.await_step(transport, (number, step), below, &is_gone)?;
            step += 1;
        }
        Ok(())
    }

    /// Takes in what comes while the channel is full: those above may be doing the same.
    fn tell<T: Transport>(
        &mut self,
        transport: &mut T,
        above: Rank,
        (number, step): (u64, u8),
    ) -> Result<()> {
        let deadline = Deadline::start(transport);
        let mut sent = transport.try_send(above, self.channel, encode(number, step))?;
        while let Sent::Full(bytes) = sent {
            if let Some(message) = transport.receive(&[self.channel], LOOK)? {
                self.note(message.from, &message.bytes, number)?;
            }
            sent = transport.try_send(above, self.channel, bytes)?;
            deadline.check(transport, || format!("{above} takes no barrier messages"))?;
        }
        Ok(())
    }

    fn await_step<T: Transport>(
        &mut self,
        transport: &mut T,
        awaited: (u64, u8),
        below: Rank,
        is_gone: impl Fn(&mut T, Rank) -> bool,
    ) -> Result<()> {
        let deadline = Deadline::start(transport);
        loop {
            if let Some(place) = self.early.iter().position(|early| *early == awaited) {
                self.early.swap_remove(place);
                return Ok(());
            }
            // Asked before receiving, since who leaves has sent before.
            let gone = is_gone(transport, below);
            match transport.receive(&[self.channel], LOOK)? {
                Some(message) => self.note(message.from, &message.bytes, awaited.0)?,
                None if gone => {
                    let what = format!("{below} has left the job: it will come to no barrier");
                    return Err(Error::new(Kind::Unavailable, what));
                }
                None => deadline
                    .check(transport, || format!("{below}, or one before it, at a barrier"))?,
            }
        }
    }

    fn note(&mut self, from: Rank, bytes: &[u8], current: u64) -> Result<()> {
        let early =
            decode(bytes).filter(|(number, _)| *number == current || *number == current + 1);
        let early = early.filter(|early| !self.early.contains(early));
        let Some(early) = early else {
            let what = format!("a barrier message of {from} is none that it could send");
            return Err(Error::new(Kind::Corrupt, what));
        };
        self.early.push(early);
        Ok(())
    }
}

fn wrap(rank: u64, size: u32) -> u32 {
    u32::try_from(rank % u64::from(size)).expect("below the size")
}

fn encode(number: u64, step: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.push(step);
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, u8)> {
    let (number, step) = bytes.split_first_chunk::<8>()?;
    let [step] = step else { return None };
    (*step < 32).then(|| (u64::from_le_bytes(*number), *step))
}

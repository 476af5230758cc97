// SPDX-License-Identifier: Apache-2.0
//! Rates: messages and records per second of a transport, measured by all ranks of a job together.
//!
//! Round trips and streams go between the first and the last rank while the others wait at a
//! barrier; records go evenly from all ranks to all. Each measurement is wall time from one barrier
//! to the next.

use std::time::Duration;

use esker_base::{Error, Kind, Result};

use crate::transport::{SendOutcome, Transport};
use crate::{Channel, Rank, Router, RouterOptions, Routing};

const DATA: Channel = Channel(1);

/// Bytes of a small message.
pub const SMALL_BYTES: usize = 64;
/// Bytes of a large message: a batch of records.
pub const LARGE_BYTES: usize = 32 << 10;

/// Size of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct MeasurementSize {
    /// Round trips.
    pub round_trips: u32,
    /// Small messages; an eighth as many large ones are sent.
    pub messages: u32,
    /// Records that each rank pushes.
    pub records: u32,
    /// Bytes of each record.
    pub record_bytes: u32,
}

impl Default for MeasurementSize {
    fn default() -> Self {
        Self { round_trips: 20_000, messages: 400_000, records: 2_000_000, record_bytes: 48 }
    }
}

/// Results; the same at all ranks apart from their clocks.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredRates {
    /// Round trips of a small message.
    pub round_trips_per_second: f64,
    /// Small messages from one rank to another.
    pub small_messages_per_second: f64,
    /// Bytes of large messages from one rank to another.
    pub large_bytes_per_second: f64,
    /// Records that all ranks together delivered with direct routing.
    pub direct_records_per_second: f64,
    /// Records that all ranks together delivered with 3-hop routing.
    pub three_hop_records_per_second: f64,
}

/// Measures all rates; all ranks call it together. In a job of one rank, messages go to itself.
///
/// # Errors
/// Errors of the transport; `Corrupt` if not all records arrived.
pub fn measure(transport: &mut dyn Transport, amount: &MeasurementSize) -> Result<MeasuredRates> {
    let trips = timed(transport, |transport| round_trips(transport, amount.round_trips))?;
    let small = timed(transport, |transport| stream(transport, amount.messages, SMALL_BYTES))?;
    let large = amount.messages / 8;
    let bulk = timed(transport, |transport| stream(transport, large, LARGE_BYTES))?;
    let direct = timed(transport, |transport| records(transport, Routing::Direct, amount))?;
    let three = timed(transport, |transport| records(transport, Routing::ThreeHop, amount))?;
    let all = f64::from(amount.records) * f64::from(transport.size());
    Ok(MeasuredRates {
        round_trips_per_second: f64::from(amount.round_trips) / trips,
        small_messages_per_second: f64::from(amount.messages) / small,
        large_bytes_per_second: f64::from(large) * LARGE_BYTES as f64 / bulk,
        direct_records_per_second: all / direct,
        three_hop_records_per_second: all / three,
    })
}

/// Seconds that all ranks together take for `work`, from barrier to barrier.
fn timed(
    transport: &mut dyn Transport,
    work: impl FnOnce(&mut dyn Transport) -> Result<()>,
) -> Result<f64> {
    transport.barrier()?;
    let start_ns = transport.monotonic_ns();
    work(transport)?;
    transport.barrier()?;
    Ok((transport.monotonic_ns() - start_ns).max(1) as f64 / 1e9)
}

fn round_trips(transport: &mut dyn Transport, count: u32) -> Result<()> {
    let (me, first, last) = (transport.rank(), Rank(0), Rank(transport.size() - 1));
    for _ in 0..count {
        if me == first {
            transport.send(last, DATA, vec![0; SMALL_BYTES])?;
        }
        if me == last {
            let message = transport.receive_soon(&[DATA], "a question")?;
            transport.send(first, DATA, message.bytes)?;
        }
        if me == first {
            transport.receive_soon(&[DATA], "an answer")?;
        }
    }
    Ok(())
}

fn stream(transport: &mut dyn Transport, count: u32, bytes: usize) -> Result<()> {
    let (me, first, last) = (transport.rank(), Rank(0), Rank(transport.size() - 1));
    let mut sent = if me == first { 0 } else { count };
    let mut received = if me == last { 0 } else { count };
    // If there is only one rank, one buffer passes back and forth.
    while sent < count || received < count {
        if sent < count {
            match transport.try_send(last, DATA, vec![0; bytes])? {
                SendOutcome::Done => sent += 1,
                SendOutcome::Full(_) if me == last => {}
                SendOutcome::Full(_) => {
                    transport.receive(&[], Duration::from_millis(50))?;
                }
            }
        }
        if received < count {
            let wait = if sent < count { Duration::ZERO } else { Duration::from_millis(50) };
            received += u32::from(transport.receive(&[DATA], wait)?.is_some());
        }
    }
    Ok(())
}

fn records(
    transport: &mut dyn Transport,
    routing: Routing,
    amount: &MeasurementSize,
) -> Result<()> {
    let (me, size) = (transport.rank(), transport.size());
    let options =
        RouterOptions { record_bytes: Some(amount.record_bytes), ..RouterOptions::new(routing) };
    let mut router = Router::new(transport, options)?;
    let record = vec![7; amount.record_bytes as usize];
    let mut bytes = 0;
    let mut sink = |_: Rank, record: &[u8]| {
        bytes += record.len() as u64;
        Ok(())
    };
    let mut to = me.0;
    for _ in 0..amount.records {
        to = if to + 1 == size { 0 } else { to + 1 };
        router.push(Rank(to), &record, &mut sink)?;
    }
    router.flush(&mut sink)?;
    // Each rank begins with its neighbour, so all receive the same number, give or take the
    // remainder.
    let expected = (0..size).map(|from| {
        let offset = (me.0 + size - from - 1) % size;
        u64::from((amount.records + size - 1 - offset) / size)
    });
    let expected = expected.sum::<u64>() * u64::from(amount.record_bytes);
    if bytes != expected {
        let what = format!("{me}: {bytes} bytes of records came, {expected} were pushed");
        return Err(Error::new(Kind::Corrupt, what));
    }
    Ok(())
}

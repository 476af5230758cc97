// SPDX-License-Identifier: Apache-2.0
//! Messages: rates of messages and records between ranks of this machine.

use std::fmt;

use esker_base::store::MemoryStore;
use esker_base::{Error, Kind, Result};
use esker_comm::job::RankContext;
use esker_comm::rates::{MeasuredRates, MeasurementSize, measure};
use esker_comm::{NodeMap, Rank, Transport, tcp, threads};
use serde::Serialize;

use crate::report::ResourceMeter;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageCarrier {
    /// Ranks that are threads.
    Threads,
    /// Ranks that are connected by TCP over this machine's loopback; here each rank is a thread.
    Tcp,
}

/// The report of `esker bench messages`.
#[derive(Clone, Debug, Serialize)]
pub struct MessagesReport {
    /// `threads` or `tcp`.
    pub transport: &'static str,
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on each simulated node.
    pub per_node: u32,
    /// Round trips of a small message, one at a time.
    pub round_trips_per_second: f64,
    /// Small messages from one rank to another.
    pub small_messages_per_second: f64,
    /// Bytes of large messages from one rank to another.
    pub large_bytes_per_second: f64,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Records of all ranks together, with direct routing.
    pub direct_records_per_second: f64,
    /// Records of all ranks together, over three hops.
    pub three_hop_records_per_second: f64,
    /// Seconds of processor time in total.
    pub cpu_seconds: f64,
}

/// Measures `carrier` with `ranks` ranks.
///
/// # Errors
/// `Invalid` without ranks; errors of the transport.
pub fn messages(
    carrier: MessageCarrier,
    ranks: u32,
    per_node: u32,
    amount: &MeasurementSize,
) -> Result<MessagesReport> {
    let nodes = NodeMap::even(ranks, per_node)?;
    let meter = ResourceMeter::start();
    let rates = match carrier {
        MessageCarrier::Threads => {
            threads::run(ranks, per_node, |transport| measure(transport, amount))?
        }
        MessageCarrier::Tcp => over_tcp(&nodes, amount)?,
    };
    let rates = rates.first().copied();
    let rates = rates.ok_or_else(|| Error::new(Kind::Invalid, "a job has at least one rank"))?;
    let cpu_seconds = meter.stop("messages", 0)?.cpu_seconds;
    Ok(MessagesReport {
        transport: if carrier == MessageCarrier::Tcp { "tcp" } else { "threads" },
        ranks,
        per_node,
        round_trips_per_second: rates.round_trips_per_second,
        small_messages_per_second: rates.small_messages_per_second,
        large_bytes_per_second: rates.large_bytes_per_second,
        record_bytes: amount.record_bytes,
        direct_records_per_second: rates.direct_records_per_second,
        three_hop_records_per_second: rates.three_hop_records_per_second,
        cpu_seconds,
    })
}

fn over_tcp(nodes: &NodeMap, amount: &MeasurementSize) -> Result<Vec<MeasuredRates>> {
    let store = MemoryStore::default();
    let rank = |rank: Rank| {
        let node = nodes.node(rank).to_string();
        let job = RankContext {
            id: "bench".into(),
            rank,
            size: nodes.size(),
            node,
            address: None,
            meet: None,
        };
        tcp::run(&store, &job, &tcp::TcpOptions::default(), |transport| {
            let rates = measure(transport, amount)?;
            transport.barrier()?;
            Ok(rates)
        })
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> =
            Rank::all(nodes.size()).map(|number| scope.spawn(move || rank(number))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

impl fmt::Display for MessagesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} ranks, {} a node: {:.0} round trips/s; {:.0} small messages/s; {:.0} MB/s; \
             {:.2} M records/s of {} bytes direct, {:.2} M/s over three hops; \
             {:.3} s of processor time",
            self.transport,
            self.ranks,
            self.per_node,
            self.round_trips_per_second,
            self.small_messages_per_second,
            self.large_bytes_per_second / 1e6,
            self.direct_records_per_second / 1e6,
            self.record_bytes,
            self.three_hop_records_per_second / 1e6,
            self.cpu_seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_is_measured() {
        let amount =
            MeasurementSize { round_trips: 50, messages: 400, records: 5000, record_bytes: 48 };
        for (carrier, ranks) in [
            (MessageCarrier::Threads, 1),
            (MessageCarrier::Threads, 5),
            (MessageCarrier::Tcp, 1),
            (MessageCarrier::Tcp, 4),
        ] {
            let report = messages(carrier, ranks, 2, &amount).unwrap();
            assert!(report.round_trips_per_second > 0.0, "{report:?}");
            assert!(report.direct_records_per_second > 0.0, "{report:?}");
        }
        assert!(messages(MessageCarrier::Threads, 0, 1, &amount).is_err());
    }
}

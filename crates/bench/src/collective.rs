// SPDX-License-Identifier: Apache-2.0
//! Collective: time for all ranks to agree on an attribute, directly, through delegates, or along
//! the log-ring (Figure 12 of MetaKV §IV-F), from the model and from runs with threads.

use std::fmt;

use esker_base::Result;
use esker_comm::collective::model::{MessageCosts, ModelledJob, time};
use esker_comm::collective::{CollectiveOptions, Collectives, Delegates, Reduction, Topology};
use esker_comm::{Rank, Transport, threads};
use serde::Serialize;

use crate::curves::{Chart, ChartCurve, draw};

/// Modelled time of one method, for one number of clients and servers.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveRow {
    /// `direct`, `delegates` or `log-ring`.
    pub way: &'static str,
    /// Ranks that have a value.
    pub clients: u32,
    /// Servers among which the clients are divided; 0 for direct.
    pub servers: u32,
    /// Modelled time until all ranks have the result.
    pub model_seconds: f64,
    /// Messages that the root takes from other servers, or from all clients; it sends as many back.
    pub root_messages: u64,
    /// Most hops between servers.
    pub hops: u32,
}

/// One method, run with threads.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveRun {
    /// `direct`, `delegates` or `log-ring`.
    pub way: &'static str,
    /// Number of ranks.
    pub ranks: u32,
    /// Mean seconds of one collective.
    pub seconds: f64,
    /// Messages that the root received for one collective.
    pub root_received: f64,
    /// Messages that the root sent for one collective.
    pub root_sent: f64,
}

/// The report of `esker bench collective`.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveReport {
    /// Message costs of the model, in nanoseconds: latency and overhead between nodes, then within
    /// one.
    pub costs_ns: [u64; 4],
    /// Figure 12: a fixed number of clients, and a growing number of servers.
    pub figure_12: Vec<CollectiveRow>,
    /// Servers without clients of their own, up to 2^20.
    pub growing: Vec<CollectiveRow>,
    /// Runs on this machine.
    pub runs: Vec<CollectiveRun>,
}

const WAYS: [(&str, Topology); 2] =
    [("delegates", Topology::Star), ("log-ring", Topology::LogRing)];

/// Models `clients` clients on 64 nodes as in the paper, and runs jobs of `ranks` ranks, 16 per
/// node, `rounds` times each.
///
/// # Errors
/// Errors of the model and of the runs.
pub fn collective(
    clients: u32,
    ranks: u32,
    rounds: u32,
    costs: MessageCosts,
) -> Result<CollectiveReport> {
    let mut figure_12 = Vec::new();
    for servers in (0..=10).map(|shift| 1 << shift).filter(|servers| *servers <= clients) {
        figure_12.push(row("direct", clients, 0, Topology::Star, &costs)?);
        for (way, topology) in WAYS {
            figure_12.push(row(way, clients, servers, topology, &costs)?);
        }
    }
    let mut growing = Vec::new();
    for ranks in (1..=20).map(|shift| 1 << shift) {
        growing.push(row("direct", ranks, 0, Topology::Star, &costs)?);
        growing.push(row("log-ring", ranks, ranks, Topology::LogRing, &costs)?);
    }
    let runs = [
        ("direct", Delegates::All, Topology::Star),
        ("delegates", Delegates::PerNode(1), Topology::Star),
        ("log-ring", Delegates::All, Topology::LogRing),
    ];
    let runs = runs.map(|(way, delegates, topology)| run(way, delegates, topology, ranks, rounds));
    let costs_ns =
        [costs.latency_ns, costs.overhead_ns, costs.local_latency_ns, costs.local_overhead_ns];
    let runs = runs.into_iter().collect::<Result<_>>()?;
    Ok(CollectiveReport { costs_ns, figure_12, growing, runs })
}

fn row(
    way: &'static str,
    clients: u32,
    servers: u32,
    topology: Topology,
    costs: &MessageCosts,
) -> Result<CollectiveRow> {
    let taken = time(ModelledJob { clients, servers, topology }, costs)?;
    Ok(CollectiveRow {
        way,
        clients,
        servers,
        model_seconds: taken.total_ns as f64 / 1e9,
        root_messages: taken.root_received,
        hops: taken.hops_max,
    })
}

fn run(
    way: &'static str,
    delegates: Delegates,
    topology: Topology,
    ranks: u32,
    rounds: u32,
) -> Result<CollectiveRun> {
    let root = Rank(0);
    let taken = threads::run(ranks, 16, |transport| {
        let me = transport.rank();
        let options = CollectiveOptions { delegates, topology, ..CollectiveOptions::default() };
        let mut collectives = Collectives::new(&mut *transport, options);
        // The first collective allocates every rank's memory.
        collectives.all_reduce_u64(root, me.0.into(), Reduction::Max)?;
        collectives.transport().barrier()?;
        let before = collectives.transport().counters();
        let start_ns = collectives.transport().monotonic_ns();
        for _ in 0..rounds {
            collectives.all_reduce_u64(root, me.0.into(), Reduction::Max)?;
        }
        let after = collectives.transport().counters();
        let end_ns = collectives.transport().monotonic_ns();
        Ok((end_ns - start_ns, before, after))
    })?;
    let rounds = f64::from(rounds.max(1));
    let longest_ns = taken.iter().map(|rank| rank.0).max().unwrap_or(0);
    let (_, before, after) = &taken[root.index()];
    Ok(CollectiveRun {
        way,
        ranks,
        seconds: longest_ns as f64 / 1e9 / rounds,
        root_received: (after.received_messages - before.received_messages) as f64 / rounds,
        root_sent: (after.sent_messages - before.sent_messages) as f64 / rounds,
    })
}

impl CollectiveReport {
    /// Both parts of the model, as SVG.
    ///
    /// # Errors
    /// As [`draw`].
    pub fn plot(&self) -> Result<String> {
        let curve = |rows: &[CollectiveRow], way: &str, x: fn(&CollectiveRow) -> f64| {
            let rows = rows.iter().filter(|row| row.way == way);
            let points = rows.map(|row| (x(row), row.model_seconds * 1e6)).collect();
            ChartCurve { name: way.to_owned(), points, is_line: true }
        };
        let mut by_servers = ["direct", "log-ring", "delegates"]
            .map(|way| curve(&self.figure_12, way, |row| f64::from(row.servers)));
        // Direct has no servers: its time is the same for any number of them.
        let places: Vec<f64> = by_servers[1].points.iter().map(|point| point.0).collect();
        for (point, place) in by_servers[0].points.iter_mut().zip(places) {
            point.0 = place;
        }
        let by_ranks = ["direct", "log-ring"]
            .map(|way| curve(&self.growing, way, |row| f64::from(row.clients)));
        let clients = self.figure_12.first().map_or(0, |row| row.clients);
        let y = "µs until all know".to_owned();
        draw(&[
            Chart {
                title: format!("{clients} clients, by servers (model)"),
                x: "servers".into(),
                y: y.clone(),
                curves: by_servers.to_vec(),
            },
            Chart {
                title: "Every rank a server, by ranks (model)".into(),
                x: "ranks".into(),
                y,
                curves: by_ranks.to_vec(),
            },
        ])
    }
}

impl fmt::Display for CollectiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model      clients  servers      µs  messages at the root  hops")?;
        for row in self.figure_12.iter().chain(&self.growing) {
            writeln!(
                f,
                "{:<10} {:>7} {:>8} {:>9.1} {:>12} {:>10}",
                row.way,
                row.clients,
                row.servers,
                row.model_seconds * 1e6,
                row.root_messages,
                row.hops
            )?;
        }
        writeln!(f, "threads      ranks      µs  root receives  sends")?;
        for run in &self.runs {
            writeln!(
                f,
                "{:<10} {:>7} {:>9.1} {:>10.1} {:>8.1}",
                run.way,
                run.ranks,
                run.seconds * 1e6,
                run.root_received,
                run.root_sent
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_log_ring_has_few_messages() {
        let report = collective(1024, 48, 10, MessageCosts::default()).unwrap();
        let root = |way| report.runs.iter().find(|run| run.way == way).unwrap().clone();
        assert_eq!((root("direct").root_received, root("direct").root_sent), (47.0, 47.0));
        assert_eq!((root("log-ring").root_received, root("log-ring").root_sent), (6.0, 6.0));
        // 15 clients of its node, and two other delegates.
        assert_eq!(root("delegates").root_received, 17.0);
        let last = report.growing.last().unwrap();
        assert_eq!((last.clients, last.root_messages), (1 << 20, 20));
        let svg = report.plot().unwrap();
        assert!(svg.contains("log-ring") && svg.contains("servers"));
    }
}

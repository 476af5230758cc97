// SPDX-License-Identifier: Apache-2.0
//! Routing: memory that routing needs per rank, measured with ranks that are threads, and modelled
//! beyond (Figure 15 of the DeltaFS thesis, §5.3.3).

use std::fmt;

use esker_base::{Error, Kind, Result};
use esker_comm::router::model;
use esker_comm::{Rank, Router, RouterOptions, Routing, Transport, threads};
use serde::Serialize;

use crate::curves::{Chart, ChartCurve, draw};

const MIB: f64 = (1 << 20) as f64;

/// Most nodes in the model: with 32 ranks each, the thesis' largest job.
const NODES_MAX: u32 = 4096;

/// The memory of one routing in one job.
#[derive(Clone, Debug, Serialize)]
pub struct RoutingRow {
    /// `direct` or `3hop`.
    pub routing: &'static str,
    /// Number of ranks.
    pub ranks: u64,
    /// Ranks on each node.
    pub per_node: u32,
    /// Bytes at which a batch is sent.
    pub batch_bytes: usize,
    /// Most next hops of a rank, by the model.
    pub next_hops: u64,
    /// Bytes of batches alone, by the model: the figure that the thesis counts.
    pub model_batches_bytes: u64,
    /// Bytes of the router, by the model.
    pub model_router_bytes: u64,
    /// Bytes of the router, the node map and the TCP transport, by the model.
    pub model_total_bytes: u64,
    /// Most next hops of a rank, measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_next_hops: Option<u64>,
    /// Most bytes that the router of any rank held, measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_router_bytes: Option<u64>,
    /// Most bytes of messages that waited for any rank, measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_transport_bytes: Option<u64>,
    /// True if the measured bytes of the router, and of the router with waiting messages, do not
    /// exceed the model, and the next hops are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_within_model: Option<bool>,
}

/// The report of `esker bench routing`.
#[derive(Clone, Debug, Serialize)]
pub struct RoutingReport {
    /// Jobs that ran.
    pub measured: Vec<RoutingRow>,
    /// Jobs that were modelled.
    pub modelled: Vec<RoutingRow>,
}

fn name(routing: Routing) -> &'static str {
    match routing {
        Routing::Direct => "direct",
        Routing::ThreeHop => "3hop",
    }
}

fn modelled(options: &RouterOptions, nodes: u32, per_node: u32) -> Result<RoutingRow> {
    let memory = model::memory(options, nodes, per_node)?;
    Ok(RoutingRow {
        routing: name(options.routing),
        ranks: u64::from(nodes) * u64::from(per_node),
        per_node,
        batch_bytes: options.batch_bytes,
        next_hops: memory.next_hops,
        model_batches_bytes: memory.batches,
        model_router_bytes: memory.router,
        model_total_bytes: memory.total(),
        measured_next_hops: None,
        measured_router_bytes: None,
        measured_transport_bytes: None,
        is_within_model: None,
    })
}

/// Runs jobs of `sizes` ranks, `per_node` on a node, in which each rank pushes `records` records to
/// every other; and models jobs of `model_per_node` ranks per node with up to 4,096 nodes.
///
/// # Errors
/// `Invalid` if a size is not a multiple of `per_node`.
pub fn routing(
    sizes: &[u32],
    per_node: u32,
    records: u32,
    model_per_node: u32,
) -> Result<RoutingReport> {
    let (mut measured, mut model) = (Vec::new(), Vec::new());
    for kind in [Routing::Direct, Routing::ThreeHop] {
        let options = RouterOptions::new(kind);
        for size in sizes {
            if per_node == 0 || size % per_node != 0 {
                let what = format!("{size} ranks are not a multiple of {per_node} ranks per node");
                return Err(Error::new(Kind::Invalid, what));
            }
            let row = modelled(&options, size / per_node, per_node)?;
            measured.push(measure(row, &options, *size, records)?);
        }
        let mut nodes = 1;
        while nodes <= NODES_MAX {
            model.push(modelled(&options, nodes, model_per_node)?);
            nodes *= 2;
        }
    }
    Ok(RoutingReport { measured, modelled: model })
}

fn measure(
    row: RoutingRow,
    options: &RouterOptions,
    size: u32,
    records: u32,
) -> Result<RoutingRow> {
    let held = threads::run(size, row.per_node, |transport| {
        let me = transport.rank();
        let mut router = Router::new(&mut *transport, options.clone())?;
        let mut sink = |_: Rank, _: &[u8]| Ok(());
        for number in 0..records {
            for step in 0..size {
                let to = Rank((me.0 + step) % size);
                router.push(to, &[number as u8; 48], &mut sink)?;
            }
        }
        router.flush(&mut sink)?;
        let counters = router.counters();
        let waiting = router.transport().counters().buffered_bytes_max;
        Ok((counters.next_hops, counters.memory_bytes_max, waiting))
    })?;
    let most = |part: fn(&(u64, u64, u64)) -> u64| held.iter().map(part).max();
    let router_bytes = most(|rank| rank.1).unwrap_or(0);
    let next_hops = most(|rank| rank.0).unwrap_or(0);
    let waiting = most(|rank| rank.2).unwrap_or(0);
    let is_within_model = router_bytes <= row.model_router_bytes
        && router_bytes + waiting <= row.model_total_bytes
        && next_hops == row.next_hops;
    Ok(RoutingRow {
        measured_next_hops: Some(next_hops),
        measured_router_bytes: Some(router_bytes),
        measured_transport_bytes: Some(waiting),
        is_within_model: Some(is_within_model),
        ..row
    })
}

impl RoutingReport {
    /// Draws the curve of the thesis' Figure 15 beside the measurements, as SVG.
    ///
    /// # Errors
    /// As [`draw`].
    pub fn plot(&self) -> Result<String> {
        let curves = |rows: &[RoutingRow], words: &str, bytes: fn(&RoutingRow) -> u64, is_line| {
            [("direct", "direct"), ("3hop", "3-hop")].map(|(routing, name)| {
                let rows = rows.iter().filter(|row| row.routing == routing && row.ranks > 1);
                let points = rows.map(|row| (row.ranks as f64, bytes(row) as f64 / MIB)).collect();
                ChartCurve { name: format!("{name}, {words}"), points, is_line }
            })
        };
        let all = |row: &RoutingRow| row.model_total_bytes;
        let mut thesis = curves(&self.modelled, "all memory", all, true).to_vec();
        let ends = self.modelled.iter().map(|row| row.ranks as f64).filter(|ranks| *ranks > 1.0);
        let (low, high) =
            ends.fold((f64::MAX, 2.0_f64), |(low, high), ranks| (low.min(ranks), high.max(ranks)));
        let bound = vec![(low.min(high), 16.0), (high, 16.0)];
        thesis.push(ChartCurve { name: "16 MiB".into(), points: bound, is_line: true });
        let router = |row: &RoutingRow| row.model_router_bytes;
        let mut runs = curves(&self.measured, "model", router, true).to_vec();
        let held = |row: &RoutingRow| row.measured_router_bytes.unwrap_or(0);
        runs.extend(curves(&self.measured, "measured", held, false));
        let per_node = |rows: &[RoutingRow]| rows.first().map_or(0, |row| row.per_node);
        let chart = |title: &str, per_node: u32, curves| Chart {
            title: format!("{title}, {per_node} ranks a node"),
            x: "ranks".into(),
            y: "MiB a rank".into(),
            curves,
        };
        draw(&[
            chart("Model", per_node(&self.modelled), thesis),
            chart("Router in runs", per_node(&self.measured), runs),
        ])
    }
}

impl fmt::Display for RoutingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "MiB of the rank that needs most:          model of              measured")?;
        writeln!(f, "routing    ranks  a node  next hops   router      all    router  waiting")?;
        for row in self.measured.iter().chain(&self.modelled) {
            let mib = |bytes: u64| bytes as f64 / MIB;
            write!(f, "{:<8} {:>7} {:>7} ", row.routing, row.ranks, row.per_node)?;
            let (router, all) = (mib(row.model_router_bytes), mib(row.model_total_bytes));
            write!(f, "{:>10} {router:>8.2} {all:>8.2}", row.next_hops)?;
            if let (Some(router), Some(waiting)) =
                (row.measured_router_bytes, row.measured_transport_bytes)
            {
                write!(f, " {:>9.2} {:>8.2}", mib(router), mib(waiting))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guarantee of 16 MiB at 32 ranks per node, in the sizes that can run.
    #[test]
    fn three_hops_of_64_to_256_ranks_need_what_the_model_says() {
        let options = RouterOptions::new(Routing::ThreeHop);
        for size in [64, 128, 256] {
            let row = modelled(&options, size / 32, 32).unwrap();
            let row = measure(row, &options, size, 20).unwrap();
            assert_eq!(row.is_within_model, Some(true), "{row:?}");
            let measured = row.measured_router_bytes.unwrap();
            assert!(5 * measured > 2 * row.model_router_bytes, "{row:?}");
        }
    }

    /// Runs and model agree: equal next hops, and no more memory, nor much less.
    #[test]
    fn what_is_measured_is_what_the_model_says() {
        let report = routing(&[16, 64], 4, 20, 32).unwrap();
        assert_eq!(report.measured.len(), 4);
        for row in &report.measured {
            assert_eq!(row.is_within_model, Some(true), "{row:?}");
            let measured = row.measured_router_bytes.unwrap();
            assert!(2 * measured > row.model_router_bytes, "{row:?}");
        }
        let largest = report.modelled.iter().filter(|row| row.ranks == 131_072);
        let totals: Vec<u64> = largest.map(|row| row.model_total_bytes).collect();
        assert!(totals[0] > 4 << 30 && totals[1] < 16 << 20, "{totals:?}");
        assert!(report.plot().unwrap().contains("MiB a rank"));
        assert_eq!(routing(&[10], 4, 1, 1).unwrap_err().kind(), Kind::Invalid);
    }
}

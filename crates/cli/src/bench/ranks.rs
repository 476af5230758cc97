// SPDX-License-Identifier: Apache-2.0
//! `esker-bench routing`, `collective`, `messages`: measure ranks and their messages.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker_base::{Error, Result};
use esker_bench::collective::collective;
use esker_bench::messages::{MessageCarrier, messages};
use esker_bench::routing::routing;
use esker_comm::collective::model::MessageCosts;
use esker_comm::rates::MeasurementSize;
use serde::Serialize;

use crate::context::CommandContext;

/// Measure and model the memory per rank of direct and three-hop routing
#[derive(Args)]
#[command(after_help = "\
Example:
  esker bench routing --ranks 64,128,256 --per-node 16 --plot routing.svg")]
pub struct RoutingCommand {
    /// Sizes of the jobs to run, as threads
    #[arg(long, value_delimiter = ',', default_value = "64,128,256", value_name = "N,…")]
    ranks: Vec<u32>,
    /// Ranks on each simulated node of these jobs
    #[arg(long, default_value_t = 16, value_name = "C")]
    per_node: u32,
    /// Records of 48 bytes that each rank pushes to every other rank
    #[arg(long, default_value_t = 200, value_name = "N")]
    records: u32,
    /// Ranks on each node of the model
    #[arg(long, default_value_t = 32, value_name = "C")]
    model_per_node: u32,
    /// Draw a chart, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl RoutingCommand {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let report = routing(&self.ranks, self.per_node, self.records, self.model_per_node)?;
        write_plot(self.plot, || report.plot())?;
        show(context, &report, report.to_string())
    }
}

/// Measure the time in which all ranks agree on an attribute: directly, over delegates, along a
/// log-ring
#[derive(Args)]
#[command(after_help = "\
Example:
  esker bench collective --clients 1024 --plot collective.svg")]
pub struct CollectiveCommand {
    /// Clients of the model, distributed over 1 to 1,024 servers
    #[arg(long, default_value_t = 1024, value_name = "N")]
    clients: u32,
    /// Ranks of the job to run, as threads, 16 per node
    #[arg(long, default_value_t = 1024, value_name = "N")]
    ranks: u32,
    /// Collectives to run
    #[arg(long, default_value_t = 20, value_name = "N")]
    rounds: u32,
    /// Latency of a message between nodes in the model, in nanoseconds
    #[arg(long, default_value_t = MessageCosts::default().latency_ns, value_name = "NS")]
    latency_ns: u64,
    /// Time that a server in the model takes to handle a message, in nanoseconds
    #[arg(long, default_value_t = MessageCosts::default().overhead_ns, value_name = "NS")]
    overhead_ns: u64,
    /// Draw the model, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl CollectiveCommand {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let Self { latency_ns, overhead_ns, .. } = self;
        let costs = MessageCosts { latency_ns, overhead_ns, ..MessageCosts::default() };
        let report = collective(self.clients, self.ranks, self.rounds, costs)?;
        write_plot(self.plot, || report.plot())?;
        show(context, &report, report.to_string())
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum TransportChoice {
    /// Ranks are threads
    Threads,
    /// Ranks communicate over loopback
    Tcp,
}

/// Measure messages and records between ranks on this machine
#[derive(Args)]
#[command(after_help = "\
Example:
  esker bench messages --transport tcp --ranks 2")]
pub struct MessagesCommand {
    /// Transport between ranks
    #[arg(long, value_enum, default_value = "threads", value_name = "HOW")]
    transport: TransportChoice,
    /// Number of ranks; a single rank sends to itself
    #[arg(long, default_value_t = 2, value_name = "N")]
    ranks: u32,
    /// Ranks on each simulated node
    #[arg(long, default_value_t = 1, value_name = "C")]
    per_node: u32,
    /// Records that each rank pushes
    #[arg(long, default_value_t = 2_000_000, value_name = "N")]
    records: u32,
    /// Bytes per record
    #[arg(long, default_value_t = 48, value_name = "B")]
    record_bytes: u32,
    /// Messages that one rank sends another
    #[arg(long, default_value_t = 400_000, value_name = "N")]
    messages: u32,
}

impl MessagesCommand {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let Self { ranks, per_node, records, record_bytes, .. } = self;
        let round_trips = self.messages / 20;
        let amount =
            MeasurementSize { round_trips, messages: self.messages, records, record_bytes };
        let carrier = match self.transport {
            TransportChoice::Threads => MessageCarrier::Threads,
            TransportChoice::Tcp => MessageCarrier::Tcp,
        };
        let report = messages(carrier, ranks, per_node, &amount)?;
        show(context, &report, report.to_string())
    }
}

/// Draws a chart into `file`, if that is given.
pub fn write_plot(file: Option<PathBuf>, draw: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(&file, draw()?)
        .map_err(|error| Error::io(error, format!("write {}", file.display())))
}

fn show(context: &CommandContext, report: &impl Serialize, text: String) -> Result<()> {
    if context.out.is_json() {
        return context.out.report(report);
    }
    context.out.line(text.trim_end())
}

// SPDX-License-Identifier: Apache-2.0
//! Metrics: the counters of a server, for operators. They are counted where the work is done, and
//! written in Prometheus' text format on request (`metrics_endpoint`).
//!
//! Concurrency: counters and histograms are atomic.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
    exponential_buckets,
};
use serde::{Deserialize, Serialize};

use crate::wire::Verb;

/// Shortest time that a histogram tells apart, the factor to the next, and their number: 10 µs to
/// 5 s.
const BUCKET_SECONDS_MIN: f64 = 10e-6;
const BUCKET_FACTOR: f64 = 2.0;
const BUCKETS: usize = 20;

/// Counts of a server's work since it began.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ServerCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused: strangers, other versions, other namespaces, too many.
    pub refused: u64,
    /// Requests answered.
    pub frames: u64,
    /// Items that changed the namespace.
    pub changes: u64,
    /// Items that read it.
    pub reads: u64,
    /// Items that failed.
    pub failures: u64,
    /// Items that were repeated, and not carried out again.
    pub repeated: u64,
    /// Syncs of the session.
    pub commits: u64,
}

/// State of the namespace, read whenever metrics are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NamespaceGauges {
    pub clients: usize,
    pub open_connections: usize,
    pub log_bytes: u64,
    pub table_bytes: u64,
    pub table_rows: u64,
    pub runs: usize,
    pub processor_ns: u64,
    pub began_ns: u64,
}

/// The metrics of one server.
#[derive(Debug)]
pub(super) struct ServerMetrics {
    pub connections: IntCounter,
    pub refused: IntCounter,
    pub changes: IntCounter,
    pub reads: IntCounter,
    pub failures: IntCounter,
    pub repeated: IntCounter,
    /// Durations of batches of requests, without the wait for commits.
    pub batches: Histogram,
    /// Durations of syncs.
    pub commits: Histogram,
    /// Requests by the codes of their verbs.
    requests: Vec<Option<IntCounter>>,
    registry: Registry,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            add(&registry, IntCounter::new(format!("esker_live_{name}"), help))
        };
        let requests = "Requests answered, by verb; a request has one or more items";
        let requests = Opts::new("esker_live_requests_total", requests);
        let counters = add(&registry, IntCounterVec::new(requests, &["verb"]));
        Self {
            connections: counter("connections_total", "Connections accepted"),
            refused: counter("connections_refused_total", "Connections refused"),
            changes: counter("changes_total", "Items that changed the namespace"),
            reads: counter("reads_total", "Items that read the namespace"),
            failures: counter("failures_total", "Items that failed"),
            repeated: counter("repeated_total", "Items repeated and not carried out again"),
            batches: durations(&registry, "batch", "Time to carry out requests received together"),
            commits: durations(&registry, "commit", "Time to sync the session and look at its set"),
            requests: requests_by_code(&counters),
            registry,
        }
    }
}

/// Registers a metric of a fixed name.
fn add<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("names and labels are valid");
    registry.register(Box::new(metric.clone())).expect("names differ");
    metric
}

fn durations(registry: &Registry, what: &str, help: &str) -> Histogram {
    let buckets = exponential_buckets(BUCKET_SECONDS_MIN, BUCKET_FACTOR, BUCKETS);
    let options = HistogramOpts::new(format!("esker_live_{what}_seconds"), help)
        .buckets(buckets.expect("a factor above one"));
    add(registry, Histogram::with_opts(options))
}

fn requests_by_code(counters: &IntCounterVec) -> Vec<Option<IntCounter>> {
    let mut by_code = vec![None; usize::from(u8::MAX) + 1];
    for verb in Verb::ALL.into_iter().filter(|verb| !verb.is_handshake()) {
        by_code[usize::from(verb as u8)] = Some(counters.with_label_values(&[verb.label()]));
    }
    by_code
}

impl ServerMetrics {
    /// Counts a request.
    pub fn count_request(&self, verb: Verb) {
        if let Some(counter) = &self.requests[usize::from(verb as u8)] {
            counter.inc();
        }
    }

    /// The counters now.
    pub fn counters(&self) -> ServerCounters {
        ServerCounters {
            connections: self.connections.get(),
            refused: self.refused.get(),
            frames: self.requests.iter().flatten().map(IntCounter::get).sum(),
            changes: self.changes.get(),
            reads: self.reads.get(),
            failures: self.failures.get(),
            repeated: self.repeated.get(),
            commits: self.commits.get_sample_count(),
        }
    }

    /// All metrics in Prometheus' text format.
    pub fn text(&self, gauges: &NamespaceGauges) -> String {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str, value: u64| {
            let gauge = add(&registry, IntGauge::new(name, help));
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        gauge("esker_live_clients", "Clients that may repeat requests", gauges.clients as u64);
        gauge("esker_live_connections", "Connections now", gauges.open_connections as u64);
        gauge("esker_live_log_bytes", "Bytes of log that a takeover replays", gauges.log_bytes);
        gauge("esker_live_table_bytes", "Bytes of tables", gauges.table_bytes);
        gauge("esker_live_table_rows", "Records in tables", gauges.table_rows);
        gauge("esker_live_runs", "Sorted runs of tables", gauges.runs as u64);
        let began = gauges.began_ns / 1_000_000_000;
        gauge("process_start_time_seconds", "Start of the server, since the Unix epoch", began);
        let used = "process_cpu_seconds_total";
        let used = prometheus::Counter::new(used, "Processor time of the server");
        add(&registry, used).inc_by(gauges.processor_ns as f64 / 1e9);
        let mut families = self.registry.gather();
        families.extend(registry.gather());
        let text = TextEncoder::new().encode_to_string(&families);
        text.expect("what was gathered can be written")
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker live top`: shows what all servers of a live namespace do, again and again.

use std::thread;
use std::time::Duration;

use clap::Args;
use esker_base::clock::SystemClock;
use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Result};
use esker_fs::names::live_namespace::LiveNamespace;
use esker_live::client::{LiveClientOptions, LiveConnection};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::context::CommandContext;
use crate::text;

/// Time after which a server that does not answer counts as none.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which signals are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Clears a terminal from its first line.
const CLEAR: &[u8] = b"\x1b[H\x1b[J";

/// Show what all servers of a live namespace do, once a second
///
/// Ctrl-C ends it. A terminal shows the last second; anything else gets one table after the other.
/// Rates are those since the table before. Several seats that one process serves show the
/// processor time of that process.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker live top run
  esker live top run --interval 10 --count 6 --json    a minute, for a program")]
pub struct TopArguments {
    /// The live namespace
    name: String,
    /// Seconds between two tables
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "SECONDS")]
    interval: f64,
    /// Number of tables; without end unless given
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// State of a server at one moment.
#[derive(Clone)]
struct SeatSample {
    /// By the monotonic clock.
    at_ns: u64,
    status: Value,
}

/// Work of a server per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SeatRates {
    changes: f64,
    reads: f64,
    failures: f64,
    syncs: f64,
    /// Processors in use.
    processors: f64,
}

/// A seat, and the connection to its server while there is one.
struct SeatMonitor {
    seat: u16,
    connection: Option<LiveConnection>,
    before: Option<SeatSample>,
}

/// The state of a seat's server, and its rates unless it has just begun; `None` without a server.
type SeatRow = Option<(Value, Option<SeatRates>)>;

impl TopArguments {
    /// Shows tables until a signal arrives or their number is reached.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let failed = |error| Error::io(error, "wait for signals");
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let store = context.store()?;
        let seats = LiveNamespace::load(&*store, &self.name)?.seats.len();
        let seats = 0..u16::try_from(seats).expect("at most SEATS_MAX");
        let monitor = |seat| SeatMonitor { seat, connection: None, before: None };
        let mut monitors: Vec<SeatMonitor> = seats.map(monitor).collect();
        // The first samples have no rates.
        self.sample(&store, &mut monitors)?;
        let mut shown = 0;
        while self.count.is_none_or(|count| shown < count) && self.waits(&mut signals) {
            let rows = self.sample(&store, &mut monitors)?;
            self.show(context, &rows)?;
            shown += 1;
        }
        for connection in monitors.into_iter().filter_map(|monitor| monitor.connection) {
            // A server that ends now has no need to forget this client.
            let _ = connection.close();
        }
        Ok(())
    }

    /// Waits for the next table; returns false if a signal has arrived.
    fn waits(&self, signals: &mut Signals) -> bool {
        let interval_ns = (self.interval * 1e9) as u64;
        let end_ns = SystemClock.monotonic_ns().saturating_add(interval_ns);
        loop {
            if signals.pending().next().is_some() {
                return false;
            }
            let left_ns = end_ns.saturating_sub(SystemClock.monotonic_ns());
            if left_ns == 0 {
                return true;
            }
            thread::sleep(Duration::from_nanos(left_ns).min(LOOK));
        }
    }

    /// Asks all servers at the same time. Fails with anything but a missing server.
    fn sample(&self, store: &SharedStore, monitors: &mut [SeatMonitor]) -> Result<Vec<SeatRow>> {
        thread::scope(|scope| {
            let ask = |monitor| scope.spawn(move || sample_seat(store, &self.name, monitor));
            let asked: Vec<_> = monitors.iter_mut().map(ask).collect();
            asked.into_iter().map(|row| row.join().expect("no panic")).collect()
        })
    }

    fn show(&self, context: &CommandContext, rows: &[SeatRow]) -> Result<()> {
        let out = &context.out;
        if out.is_json() {
            out.json(json!({"name": self.name, "seats": rows.iter().map(row_object).collect::<Vec<_>>()}))?;
            return out.flush();
        }
        if out.is_terminal() {
            out.raw(CLEAR)?;
        }
        let all = rows.iter().flatten().filter_map(|(_, rates)| *rates);
        let (changes, reads) = all.fold((0.0, 0.0), |(changes, reads), rates| {
            (changes + rates.changes, reads + rates.reads)
        });
        let seats = text::counted(rows.len() as u64, "seat");
        let (changes, reads) = (whole(changes), whole(reads));
        out.line(format!("{}: {seats}, {changes} changes/s, {reads} reads/s", self.name))?;
        out.line(table_line([
            "seat",
            "changes/s",
            "reads/s",
            "failures/s",
            "syncs/s",
            "processor",
            "clients",
            "in tables",
            "log",
            "server",
        ]))?;
        for (seat, row) in rows.iter().enumerate() {
            out.line(row_line(seat, row))?;
        }
        if !out.is_terminal() {
            out.line("")?;
        }
        out.flush()
    }
}

/// Asks the server of one seat; returns `None` without one.
fn sample_seat(store: &SharedStore, name: &str, monitor: &mut SeatMonitor) -> Result<SeatRow> {
    let connection = match monitor.connection.take() {
        Some(connection) => Ok(connection),
        None => {
            let options = LiveClientOptions { patience: PATIENCE, ..LiveClientOptions::default() };
            LiveConnection::connect(store, (name, monitor.seat), options)
        }
    };
    let asked = connection.and_then(|mut connection| {
        let status = connection.status()?;
        Ok((connection, SeatSample { at_ns: SystemClock.monotonic_ns(), status }))
    });
    match asked {
        Ok((connection, sample)) => {
            monitor.connection = Some(connection);
            let before = monitor.before.replace(sample.clone());
            Ok(Some((sample.status.clone(), before.and_then(|before| rates(&before, &sample)))))
        }
        Err(error) if error.kind() == Kind::Unavailable => {
            monitor.before = None;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The rates between two samples of one server.
fn rates(before: &SeatSample, after: &SeatSample) -> Option<SeatRates> {
    let seconds = after.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
    if before.status["instance"] != after.status["instance"] || seconds <= 0.0 {
        return None;
    }
    let difference = |pointer: &str| {
        let of = |sample: &SeatSample| sample.status.pointer(pointer).and_then(Value::as_u64);
        of(after).unwrap_or(0).saturating_sub(of(before).unwrap_or(0)) as f64
    };
    Some(SeatRates {
        changes: difference("/counters/changes") / seconds,
        reads: difference("/counters/reads") / seconds,
        failures: difference("/counters/failures") / seconds,
        syncs: difference("/counters/commits") / seconds,
        processors: difference("/processor_ns") / 1e9 / seconds,
    })
}

fn row_line(seat: usize, row: &SeatRow) -> String {
    let Some((status, rates)) = row else {
        return format!("{seat:>4}  no server answers");
    };
    let of = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let rate = |rate: fn(&SeatRates) -> f64| match rates {
        Some(rates) => whole(rate(rates)),
        None => "-".to_owned(),
    };
    let processor =
        rates.map_or("-".to_owned(), |rates| format!("{:.0} %", rates.processors * 100.0));
    table_line([
        &seat.to_string(),
        &rate(|rates| rates.changes),
        &rate(|rates| rates.reads),
        &rate(|rates| rates.failures),
        &rate(|rates| rates.syncs),
        &processor,
        &text::count(of("/clients")),
        &text::count(of("/session/entries")),
        &text::bytes(of("/session/log_bytes")),
        &format!("{} ({})", status["host"].as_str().unwrap_or("?"), of("/pid")),
    ])
}

fn table_line(
    [seat, changes, reads, failures, syncs, processor, clients, records, log, server]: [&str; 10],
) -> String {
    format!(
        "{seat:>4}{changes:>12}{reads:>12}{failures:>12}{syncs:>9}{processor:>11}{clients:>9}\
         {records:>13}{log:>10}  {server}"
    )
}

/// A rate as a whole number.
fn whole(rate: f64) -> String {
    text::count(rate.round() as u64)
}

/// One seat as JSON; docs/guide/command.md describes it.
fn row_object(row: &SeatRow) -> Value {
    let Some((status, rates)) = row else { return Value::Null };
    let rates = rates.map(|rates| {
        json!({
            "changes": rates.changes,
            "reads": rates.reads,
            "failures": rates.failures,
            "syncs": rates.syncs,
            "processors": rates.processors,
        })
    });
    json!({"status": status, "per_second": rates})
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("between 0.1 seconds and a day".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ns: u64, instance: &str, changes: u64, processor_ns: u64) -> SeatSample {
        let counters = json!({"changes": changes, "reads": 7, "failures": 0, "commits": 3});
        let status =
            json!({"instance": instance, "processor_ns": processor_ns, "counters": counters});
        SeatSample { at_ns, status }
    }

    #[test]
    fn rates_are_those_of_one_server() {
        let (begun, two) = (7_000_000_000, 2_000_000_000);
        let before = sample(begun, "a", 1000, 5_000_000_000);
        let after = sample(begun + two, "a", 4000, 6_000_000_000);
        let expected =
            SeatRates { changes: 1500.0, reads: 0.0, failures: 0.0, syncs: 0.0, processors: 0.5 };
        assert_eq!(rates(&before, &after), Some(expected));
        // The counters of another server began again.
        assert_eq!(rates(&before, &sample(begun + two, "b", 4000, 6_000_000_000)), None);
        assert_eq!(rates(&before, &sample(begun, "a", 4000, 6_000_000_000)), None);
    }

    #[test]
    fn a_seat_without_server_has_a_line() {
        assert_eq!(row_line(3, &None), "   3  no server answers");
        let status = sample(1, "a", 1, 0).status;
        let line = row_line(0, &Some((status, None)));
        assert!(line.starts_with("   0           -"), "{line}");
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "1e9", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}

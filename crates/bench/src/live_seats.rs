// SPDX-License-Identifier: Apache-2.0
//! Live seats: one directory of a live namespace whose names are spread over all of its seats: rates of
//! creates, stats and renames by one client, the processor time of all servers beside them, and how
//! evenly the seats share the files.
//!
//! Source: GIGA+ over TableFS, TR Fig. 5 and 10 (one shared directory, by number of servers).

use std::collections::VecDeque;
use std::fmt;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_live::LiveTree;
use esker_live::client::{Answer, LiveDir, Request};
use esker_live::wire::take_attributes;
use serde::Serialize;

use crate::live::file_name;

/// Items of a request.
const BATCH: usize = 128;
/// Requests under way at all seats together.
const UNDER_WAY: usize = 32;
/// Files that are renamed, one at a time, at most.
const RENAMED: u64 = 1000;

/// The figures of one kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct SeatsRate {
    /// The kind of request.
    pub work: &'static str,
    /// Number of items.
    pub operations: u64,
    /// Items a second.
    pub operations_per_second: f64,
    /// Processor time of all servers, in microseconds an item.
    pub server_microseconds: f64,
}

/// The figures of one spread directory.
#[derive(Clone, Debug, Serialize)]
pub struct LiveSeatsReport {
    /// The benchmark.
    pub operation: &'static str,
    /// One for each kind of request.
    pub rates: Vec<SeatsRate>,
    /// Files of the directory at each seat.
    pub files: Vec<u64>,
}

impl LiveSeatsReport {
    /// The largest difference of a seat's files from the mean, as a share of that.
    fn imbalance(&self) -> f64 {
        let mean = self.files.iter().sum::<u64>() as f64 / self.files.len() as f64;
        self.files.iter().map(|files| (*files as f64 / mean - 1.0).abs()).fold(0.0, f64::max)
    }
}

impl fmt::Display for LiveSeatsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rate in &self.rates {
            writeln!(
                f,
                "{:<42} {:>9.0}/s, {:.2} µs of all servers each",
                rate.work, rate.operations_per_second, rate.server_microseconds,
            )?;
        }
        let (seats, off) = (self.files.len(), self.imbalance() * 100.0);
        write!(f, "{seats} seats, whose files are within {off:.1} % of the mean")
    }
}

/// The work of a client in one directory.
struct DirectoryLoad<'a> {
    tree: &'a mut LiveTree,
    dir: &'a LiveDir,
    files: u64,
}

/// Measures `tree`, which has no other user, with `files` files in a new spread directory of its root.
///
/// # Errors
/// As the requests fail; `Invalid` without files.
pub fn live_seats(tree: &mut LiveTree, files: u64) -> Result<LiveSeatsReport> {
    if files == 0 {
        return Err(Error::new(Kind::Invalid, "a directory without files has no rates"));
    }
    let name = format!("bench-{:016x}", Random::from_system().next_u64());
    let dir = tree.make_spread_directory(&LiveDir::root(), name.as_bytes(), 0o755)?;
    let mut load = DirectoryLoad { tree, dir: &dir, files };
    let all_done = |answer: &Answer| answer.outcomes()?.into_iter().collect::<Result<()>>();
    let all_found = |answer: &Answer| {
        answer.items(take_attributes)?.into_iter().try_for_each(|each| each.map(drop))
    };
    let create = |dir: &LiveDir, names: &[&[u8]]| Request::create(dir, 0o644, names);
    let rates = vec![
        load.run("create, batches of 128", |index| index, &create, &all_done)?,
        // In an order unlike that of the creates.
        load.run(
            "stat, batches of 128",
            |index| index.wrapping_mul(2_654_435_761) % files,
            &Request::lookup,
            &all_found,
        )?,
        load.rename()?,
    ];
    let mut at_seats = vec![0; usize::from(tree.seats())];
    for entry in tree.list_as_named(&dir)? {
        at_seats[usize::from(dir.seat_of(&entry.name))] += 1;
    }
    Ok(LiveSeatsReport { operation: "live-seats", rates, files: at_seats })
}

impl DirectoryLoad<'_> {
    /// Sends requests for all files, in the order of `file`, in batches to the seats that have them.
    fn run(
        &mut self,
        work: &'static str,
        file: impl Fn(u64) -> u64,
        request: &dyn Fn(&LiveDir, &[&[u8]]) -> Request,
        check: &dyn Fn(&Answer) -> Result<()>,
    ) -> Result<SeatsRate> {
        let (before_ns, start_ns) = (processor_ns(self.tree)?, SystemClock.monotonic_ns());
        let mut batches: Vec<Vec<Vec<u8>>> = vec![Vec::new(); usize::from(self.tree.seats())];
        let mut waiting = VecDeque::new();
        for index in 0..self.files {
            let name = file_name(file(index));
            let seat = self.dir.seat_of(&name);
            let batch = &mut batches[usize::from(seat)];
            batch.push(name);
            if batch.len() == BATCH {
                self.send(seat, std::mem::take(batch), request, &mut waiting)?;
            }
            while waiting.len() > UNDER_WAY {
                self.take(waiting.pop_front(), check)?;
            }
        }
        for (seat, batch) in (0..).zip(batches) {
            self.send(seat, batch, request, &mut waiting)?;
        }
        while !waiting.is_empty() {
            self.take(waiting.pop_front(), check)?;
        }
        self.rate(work, self.files, (before_ns, start_ns))
    }

    fn send(
        &mut self,
        seat: u16,
        batch: Vec<Vec<u8>>,
        request: &dyn Fn(&LiveDir, &[&[u8]]) -> Request,
        waiting: &mut VecDeque<(u16, u64)>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let names: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
        let number = self.tree.connection_to(seat)?.submit(request(self.dir, &names))?;
        waiting.push_back((seat, number));
        Ok(())
    }

    fn take(
        &mut self,
        waiting: Option<(u16, u64)>,
        check: &dyn Fn(&Answer) -> Result<()>,
    ) -> Result<()> {
        let (seat, number) = waiting.expect("a request is under way");
        check(&self.tree.connection_to(seat)?.wait(number)?)
    }

    /// Renames files, most of them to names at other seats.
    fn rename(&mut self) -> Result<SeatsRate> {
        let renamed = self.files.min(RENAMED);
        let (before_ns, start_ns) = (processor_ns(self.tree)?, SystemClock.monotonic_ns());
        for index in 0..renamed {
            let old = file_name(index);
            let new = [b"renamed.", &old[..]].concat();
            self.tree.rename((self.dir, &old), (self.dir, &new))?;
        }
        self.rate("rename, one at a time", renamed, (before_ns, start_ns))
    }

    fn rate(
        &mut self,
        work: &'static str,
        operations: u64,
        (before_ns, start_ns): (u64, u64),
    ) -> Result<SeatsRate> {
        let seconds = (SystemClock.monotonic_ns() - start_ns) as f64 / 1e9;
        let server_ns = processor_ns(self.tree)?.saturating_sub(before_ns);
        Ok(SeatsRate {
            work,
            operations,
            operations_per_second: operations as f64 / seconds,
            server_microseconds: server_ns as f64 / 1e3 / operations as f64,
        })
    }
}

/// Processor time that the servers of all seats have used. A process that serves several counts once.
fn processor_ns(tree: &mut LiveTree) -> Result<u64> {
    let mut by_process = std::collections::BTreeMap::new();
    for seat in 0..tree.seats() {
        let status = tree.status_of(seat)?;
        let process = (status["host"].to_string(), status["pid"].as_u64());
        let used_ns = status["processor_ns"].as_u64().ok_or_else(|| {
            let what = "the server does not say how much processor time it has used";
            Error::new(Kind::Unsupported, what)
        })?;
        by_process.insert(process, used_ns);
    }
    Ok(by_process.into_values().sum())
}

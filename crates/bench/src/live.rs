// SPDX-License-Identifier: Apache-2.0
//! Live: rates of a live namespace: round trips, creates and stats, one at a time, with many
//! requests under way, and in batches; beside each the processor time of the server.
//!
//! All work goes through one connection of one thread. A round trip of frames that ask for nothing
//! shows the cost of the connection itself. Source: IndexFS, thesis Fig. 2.4 (synchronous,
//! asynchronous, in batches); DeltaFS, thesis Fig. 4.10b (creates in one message).

use std::collections::VecDeque;
use std::fmt;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_live::LiveTree;
use esker_live::client::{Answer, LiveDir, Request};
use esker_live::wire::take_attributes;
use serde::Serialize;

/// Requests under way where there are many.
const UNDER_WAY: usize = 64;
/// Items of a batch: as many creates as IndexFS sends in one message.
const BATCH: usize = 128;

/// The figures of one kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct LiveRate {
    /// The kind of request.
    pub work: &'static str,
    /// Number of items.
    pub operations: u64,
    /// Items a second.
    pub operations_per_second: f64,
    /// Processor time of the server, in microseconds an item.
    pub server_microseconds: f64,
}

/// The figures of a live namespace.
#[derive(Clone, Debug, Serialize)]
pub struct LiveReport {
    /// The benchmark.
    pub operation: &'static str,
    /// One for each kind of request.
    pub rates: Vec<LiveRate>,
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rate) in self.rates.iter().enumerate() {
            write!(
                f,
                "{}{:<42} {:>9.0}/s, {:.2} µs of server each",
                if index == 0 { "" } else { "\n" },
                rate.work,
                rate.operations_per_second,
                rate.server_microseconds,
            )?;
        }
        Ok(())
    }
}

/// A stream of requests.
struct Load<'a> {
    work: &'static str,
    /// Items of each request.
    items: usize,
    /// Requests under way.
    under_way: usize,
    operations: u64,
    /// Makes the request for items from a number on.
    request: &'a dyn Fn(u64, usize) -> Request,
    /// Checks the answer.
    check: &'a dyn Fn(&Answer) -> Result<()>,
}

/// Measures `tree`, which has no other user, with some `operations` of each kind, in a new
/// directory of its root.
///
/// # Errors
/// As the requests fail.
pub fn live(tree: &mut LiveTree, operations: u64) -> Result<LiveReport> {
    let name = format!("bench-{:016x}", Random::from_system().next_u64());
    let top = tree.make_directory(&LiveDir::root(), name.as_bytes(), 0o755)?;
    let mut rates = Vec::new();
    let null = |_: u64, _: usize| Request::null();
    let all_done = |answer: &Answer| answer.outcomes()?.into_iter().collect::<Result<()>>();
    let each_one = operations / 16;
    let load = |work, items, under_way, operations| Load {
        work,
        items,
        under_way,
        operations,
        request: &null,
        check: &all_done,
    };
    rates.push(run(tree, &load("null, one at a time", 1, 1, each_one))?);
    rates.push(run(tree, &load("null, 64 under way", 1, UNDER_WAY, operations))?);
    let kinds = [
        ("create, one at a time", 1, 1, each_one, false),
        ("create, 64 under way", 1, UNDER_WAY, operations, false),
        ("create, batches of 128", BATCH, 16, operations * 4, false),
        ("create, 64 durable batches of 128 under way", BATCH, UNDER_WAY, operations * 4, true),
    ];
    let mut dirs = Vec::new();
    for (work, items, under_way, operations, is_durable) in kinds {
        let dir = tree.make_directory(&top, format!("d{}", dirs.len()).as_bytes(), 0o755)?;
        let request = |first: u64, count: usize| {
            let request = with_names(first, count, |names| Request::create(&dir, 0o644, names));
            if is_durable { request.durable() } else { request }
        };
        let load = load(work, items, under_way, operations);
        rates.push(run(tree, &Load { request: &request, ..load })?);
        dirs.push((dir, operations));
    }
    let (dir, files) = dirs.pop().expect("four directories");
    let found = |answer: &Answer| {
        answer.items(take_attributes)?.into_iter().try_for_each(|each| each.map(drop))
    };
    let kinds = [
        ("stat, one at a time", 1, 1, each_one),
        ("stat, 64 under way", 1, UNDER_WAY, operations),
        ("stat, batches of 128", BATCH, 16, operations * 4),
    ];
    for (work, items, under_way, operations) in kinds {
        // In an order unlike that of the creates, each file at most once.
        let request = |first: u64, count: usize| {
            let step = |index: u64| (first + index).wrapping_mul(2_654_435_761) % files;
            let names: Vec<Vec<u8>> =
                (0..count as u64).map(|index| file_name(step(index))).collect();
            let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            Request::lookup(&dir, &names)
        };
        let load = load(work, items, under_way, operations);
        rates.push(run(tree, &Load { request: &request, check: &found, ..load })?);
    }
    Ok(LiveReport { operation: "live", rates })
}

pub(crate) fn file_name(number: u64) -> Vec<u8> {
    format!("file.{number:09}").into_bytes()
}

fn with_names(first: u64, count: usize, make: impl FnOnce(&[&[u8]]) -> Request) -> Request {
    let names: Vec<Vec<u8>> = (first..first + count as u64).map(file_name).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    make(&names)
}

fn run(tree: &mut LiveTree, load: &Load) -> Result<LiveRate> {
    let clock = SystemClock;
    let before = processor_ns(tree)?;
    let start_ns = clock.monotonic_ns();
    let mut waiting = VecDeque::new();
    let (mut begun, mut done) = (0, 0);
    while done < load.operations {
        while begun < load.operations && waiting.len() < load.under_way {
            let count = load.items.min((load.operations - begun) as usize);
            let request = (load.request)(begun, count);
            let seat = request.seat();
            waiting.push_back((tree.connection_to(seat)?.submit(request)?, seat, count));
            begun += count as u64;
        }
        let (number, seat, count) = waiting.pop_front().expect("some request is under way");
        (load.check)(&tree.connection_to(seat)?.wait(number)?)?;
        done += count as u64;
    }
    let seconds = (clock.monotonic_ns() - start_ns) as f64 / 1e9;
    let server_ns = processor_ns(tree)?.saturating_sub(before);
    let operations = load.operations;
    Ok(LiveRate {
        work: load.work,
        operations,
        operations_per_second: operations as f64 / seconds,
        server_microseconds: server_ns as f64 / 1e3 / operations as f64,
    })
}

/// Processor time that the server has used.
pub(crate) fn processor_ns(tree: &mut LiveTree) -> Result<u64> {
    let status = tree.status()?;
    status["processor_ns"].as_u64().ok_or_else(|| {
        Error::new(Kind::Unsupported, "the server does not say how much processor time it has used")
    })
}

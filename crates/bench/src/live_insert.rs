// SPDX-License-Identifier: Apache-2.0
//! Live insert: ways to create many files in a live namespace, from one durable request each to a
//! bulk insertion; and what an insertion costs the server.
//!
//! Source: IndexFS, thesis Fig. 2.4 (synchronous, asynchronous, bulk insertion, larger buffer).

use std::fmt;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Random, Result};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_live::LiveTree;
use esker_live::client::{BulkInsertion, LiveDir, Request};
use esker_table::tree::Durability;
use serde::Serialize;

use crate::live::{file_name, processor_ns};

/// Memory for changes of the smaller insertion, of the larger one and of the session alone.
const BUFFER_BYTES: [usize; 2] = [64 << 20, 768 << 20];
/// Part of the files that are created one at a time.
const ONE_AT_A_TIME: u64 = 256;

/// The rate of one way to create files.
#[derive(Clone, Debug, Serialize)]
pub struct CreateRate {
    /// The way.
    pub work: &'static str,
    /// Number of files.
    pub files: u64,
    /// Files a second, until others see them.
    pub files_per_second: f64,
}

/// The cost of one insertion at the server.
#[derive(Clone, Debug, Serialize)]
pub struct InsertionCost {
    /// Number of files in the directory.
    pub files: u64,
    /// Time of both requests, in milliseconds.
    pub milliseconds: f64,
    /// Processor time of the server, in milliseconds.
    pub server_milliseconds: f64,
}

/// The figures of bulk insertions.
#[derive(Clone, Debug, Serialize)]
pub struct LiveInsertReport {
    /// The benchmark.
    pub operation: &'static str,
    /// One for each way, each faster than the one before; the last is a session that inserts
    /// nothing.
    pub rates: Vec<CreateRate>,
    /// Insertions of directories of different sizes.
    pub insertions: Vec<InsertionCost>,
}

impl fmt::Display for LiveInsertReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rate in &self.rates {
            writeln!(f, "{:<42} {:>9.0}/s", rate.work, rate.files_per_second)?;
        }
        for (index, cost) in self.insertions.iter().enumerate() {
            write!(
                f,
                "{}insertion of {:<29} {:>9.2} ms, {:.2} ms of server",
                if index == 0 { "" } else { "\n" },
                format!("{} files", cost.files),
                cost.milliseconds,
                cost.server_milliseconds,
            )?;
        }
        Ok(())
    }
}

/// Creates `files` files in each way in new directories of the root of `tree`, which has no other
/// user; ways of one request each create fewer. `options` are those of sessions.
///
/// # Errors
/// As the requests fail; errors of the store.
pub fn live_insert(
    repository: &Repository,
    tree: &mut LiveTree,
    options: &SessionOptions,
    files: u64,
) -> Result<LiveInsertReport> {
    let name = format!("bench-{:016x}", Random::from_system().next_u64());
    let top = tree.make_directory(&LiveDir::root(), name.as_bytes(), 0o755)?;
    let mut rates = Vec::new();
    let few = (files / ONE_AT_A_TIME).max(1);
    for (work, is_durable) in [("one durable request each", true), ("one request each", false)] {
        let dir = tree.make_directory(&top, work.as_bytes(), 0o755)?;
        let seconds = timed(|| {
            (0..few).try_for_each(|number| {
                let create = Request::create(&dir, 0o644, &[&file_name(number)]);
                tree.change(if is_durable { create.durable() } else { create })
            })
        })?;
        rates.push(CreateRate { work, files: few, files_per_second: few as f64 / seconds });
    }
    let sized = |memory_bytes: usize| {
        let mut options = options.clone();
        options.tree.memory_bytes = memory_bytes;
        options.tree.durability = Durability::None;
        options
    };
    let mut insertions = Vec::new();
    let bulk = ["bulk insertion, 64 MiB of memory", "bulk insertion, 768 MiB of memory"];
    for (work, memory_bytes) in bulk.into_iter().zip(BUFFER_BYTES) {
        let seconds = timed(|| {
            let insertion = BulkInsertion::begin(repository, 0o755, sized(memory_bytes))?;
            create(insertion.session(), insertion.dir(), files)?;
            insertion.insert(tree, &top, work.as_bytes())
        })?;
        rates.push(CreateRate { work, files, files_per_second: files as f64 / seconds });
    }
    let seconds = timed(|| {
        let session = repository.begin(&[], sized(BUFFER_BYTES[1]).private())?;
        create(&session, session.root(), files)?;
        session.complete()?;
        repository.abandon_session(&session)
    })?;
    let work = "a session that inserts nothing";
    rates.push(CreateRate { work, files, files_per_second: files as f64 / seconds });
    for size in [(files / 100).max(1), files] {
        let insertion = BulkInsertion::begin(repository, 0o755, sized(BUFFER_BYTES[1]))?;
        create(insertion.session(), insertion.dir(), size)?;
        insertion.session().complete()?;
        let before_ns = processor_ns(tree)?;
        let name = format!("inserted-{size}");
        let seconds = timed(|| insertion.insert(tree, &top, name.as_bytes()))?;
        let server_ns = processor_ns(tree)?.saturating_sub(before_ns);
        insertions.push(InsertionCost {
            files: size,
            milliseconds: seconds * 1e3,
            server_milliseconds: server_ns as f64 / 1e6,
        });
    }
    Ok(LiveInsertReport { operation: "live-insert", rates, insertions })
}

fn create(session: &Session, dir: &Dir, files: u64) -> Result<()> {
    (0..files).try_for_each(|number| session.create(dir, &file_name(number), 0o644).map(drop))
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start_ns = SystemClock.monotonic_ns();
    work()?;
    Ok((SystemClock.monotonic_ns() - start_ns) as f64 / 1e9)
}

// SPDX-License-Identifier: Apache-2.0
//! Store checks: whether the given store answers, what this user may do in it, and how fast.
//!
//! Writes are small objects below [`PROBE_PREFIX`], which no other command reads. Each is deleted
//! before the next; those of a check that was killed are deleted by a later one.

use std::path::Path;

use esker_base::store::identity::StoreIdentity;
use esker_base::store::{SharedStore, url};
use esker_base::{Error, Kind, Random, Result};

use super::check::{CheckStatus, MachineCheck};
use super::search_path::may_write;
use crate::context::CommandContext;
use crate::{mount_overlap, text};

/// The prefix of objects that are written on trial; docs/format/store.md lists it.
const PROBE_PREFIX: &str = "doctor/";
/// Writes of which the median is shown.
const WRITES: usize = 5;
/// Objects of other checks that are older than this were left behind.
const LEFT_NS: u64 = 3_600_000_000_000;
/// Below this difference of clocks, nobody needs to act.
const CLOCK_NS_MAX: u64 = 2_000_000_000;
/// Below this much free space, jobs soon fail.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// Directories of a store to which sessions write.
const WRITTEN_DIRECTORIES: [&str; 4] = ["set", "ref", "name", "tmp"];

/// The checks of a store, and the error of the first that failed.
pub struct StoreChecks {
    /// The checks.
    pub checks: Vec<MachineCheck>,
    /// The error for which the store cannot be used.
    pub error: Option<Error>,
}

impl StoreChecks {
    /// Checks the store at `url`.
    pub fn of(context: &CommandContext, url: &str) -> Self {
        let mut found = Self { checks: Vec::new(), error: None };
        if let Err(error) = found.add_all(context, url) {
            let finding = format!("cannot be opened: {error}");
            found.checks.push(MachineCheck::new("store", CheckStatus::Fails, finding));
            found.error = Some(error);
        }
        found
    }

    fn add_all(&mut self, context: &CommandContext, url: &str) -> Result<()> {
        let store = url::connect(url)?;
        let (identity, seconds) = context.timed(|| StoreIdentity::read(&*store));
        let identity = identity?;
        let kind = kind_of(url);
        let finding = format!(
            "{} is a store in {kind}, of format {}; reading an object takes {}",
            store.url(),
            identity.format,
            milliseconds(seconds)
        );
        let check = MachineCheck::new("store", CheckStatus::Works, finding)
            .with("url", store.url())
            .with("kind", kind)
            .with("format", identity.format)
            .with("id", identity.id)
            .with("read_seconds", seconds);
        self.checks.push(check);
        self.add_write(context, &store, url);
        if let Some(free) = store.free_bytes() {
            self.checks.push(free_space(free));
        }
        Ok(())
    }

    fn add_write(&mut self, context: &CommandContext, store: &SharedStore, url: &str) {
        let trial = WriteTrial::run(context, store);
        let closed = closed_directory(url);
        let check = match (trial, closed) {
            (Ok(trial), None) => {
                self.checks.extend(trial.clock_check());
                let median = trial.median_seconds();
                let finding = format!("a durable small write takes {}", milliseconds(median));
                MachineCheck::new("store-write", CheckStatus::Works, finding)
                    .with("write_seconds", median)
            }
            (Ok(_), Some(closed)) => {
                let finding = format!("read access only: you may not write to {closed}");
                MachineCheck::new("store-write", CheckStatus::Limited, finding).advise(
                    "its owner can share it with a group (guide/sharing.md), or use another store",
                )
            }
            (Err(error), _) if matches!(error.kind(), Kind::Denied | Kind::ReadOnly) => {
                let finding = format!("read access only: {error}");
                MachineCheck::new("store-write", CheckStatus::Limited, finding).advise(
                    "to publish, ask the store's owner for write access, or use another store",
                )
            }
            (Err(error), _) => {
                let check = MachineCheck::failed("store-write", &error);
                self.error = Some(error);
                check
            }
        };
        // Behind the store itself.
        self.checks.insert(1, check);
    }
}

/// Fails if no command can use the store at `url`, nor make it.
///
/// # Errors
/// Why not.
pub fn obstacle(url: &str) -> Result<()> {
    match url::open(url) {
        Err(error) if error.kind() == Kind::NotFound => {
            let Some(directory) = mount_overlap::directory_of(url) else { return Err(error) };
            let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
            match absolute.ancestors().find(|path| path.exists()) {
                Some(existing) if existing.is_dir() && may_write(existing) => Ok(()),
                _ => {
                    let what = format!("{url} does not exist, and you may not make it there");
                    Err(Error::new(Kind::Denied, what))
                }
            }
        }
        opened => opened.map(drop),
    }
}

/// The kind of the store at `url`, in a few words.
fn kind_of(url: &str) -> &'static str {
    match url.split_once(':') {
        Some(("s3", _)) => "a bucket",
        Some(("memory", _)) => "memory of this process",
        _ => "a directory",
    }
}

/// A directory of the store at `url` to which sessions write, and this user may not.
fn closed_directory(url: &str) -> Option<String> {
    let root = mount_overlap::directory_of(url)?;
    let all = std::iter::once(root.to_owned())
        .chain(WRITTEN_DIRECTORIES.iter().map(|name| root.join(name)));
    let is_closed = |path: &Path| path.is_dir() && !may_write(path);
    all.into_iter().find(|path| is_closed(path)).map(|path| path.display().to_string())
}

fn free_space(free: u64) -> MachineCheck {
    let finding = format!("{} free", text::bytes(free));
    let check = match free >= FREE_BYTES_MIN {
        true => MachineCheck::new("store-space", CheckStatus::Works, finding),
        false => MachineCheck::new("store-space", CheckStatus::Limited, finding)
            .advise("`esker gc` frees what nothing uses"),
    };
    check.with("free_bytes", free)
}

/// A duration in milliseconds, with digits enough to compare.
fn milliseconds(seconds: f64) -> String {
    let value = seconds * 1e3;
    if value < 10.0 { format!("{value:.2} ms") } else { format!("{value:.0} ms") }
}

/// Durable writes on trial.
struct WriteTrial {
    seconds: Vec<f64>,
    /// Clock of the store after a write minus that of this machine, if the store tells.
    ahead_ns: Option<i128>,
}

impl WriteTrial {
    /// Writes small objects, and deletes each.
    fn run(context: &CommandContext, store: &SharedStore) -> Result<Self> {
        let mut random = Random::from_system();
        let mut trial = Self { seconds: Vec::new(), ahead_ns: None };
        for _ in 0..WRITES {
            let name = format!("{PROBE_PREFIX}{:032x}", random.u128());
            let before_ns = context.now_ns();
            let (put, seconds) = context.timed(|| store.put_if_absent(&name, b"esker doctor\n"));
            let after_ns = context.now_ns();
            if put.is_ok() && trial.ahead_ns.is_none() {
                trial.ahead_ns = ahead_ns(store, &name, before_ns..=after_ns)?;
            }
            // A put that failed may have taken effect nevertheless.
            let deleted = store.delete(&name);
            put?;
            deleted?;
            trial.seconds.push(seconds);
        }
        Ok(trial)
    }

    fn median_seconds(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    fn clock_check(&self) -> Option<MachineCheck> {
        let ahead_ns = self.ahead_ns?;
        let seconds = ahead_ns as f64 / 1e9;
        let check = if ahead_ns.unsigned_abs() <= u128::from(CLOCK_NS_MAX) {
            let finding = "the store's clock and this machine's agree within 2 s";
            MachineCheck::new("store-clock", CheckStatus::Works, finding)
        } else {
            let which = if ahead_ns > 0 { "ahead of" } else { "behind" };
            let finding =
                format!("the store's clock is {:.0} s {which} this machine's", seconds.abs());
            MachineCheck::new("store-clock", CheckStatus::Limited, finding).advise(
                "`esker gc` compares times of both: synchronize them by NTP, or ask the \
                 administrator to",
            )
        };
        Some(check.with("ahead_seconds", seconds))
    }
}

/// The lead of the store's clock when it put the object `name`, in the time of this machine that
/// `during` gives. Deletes objects that earlier checks left behind.
fn ahead_ns(
    store: &SharedStore,
    name: &str,
    during: std::ops::RangeInclusive<u64>,
) -> Result<Option<i128>> {
    let listed = store.list(PROBE_PREFIX)?;
    let Some(probe) = listed.iter().find(|object| object.name == name) else { return Ok(None) };
    let modified_ns = probe.modified_ns;
    let is_left = |object_ns: u64| object_ns.saturating_add(LEFT_NS) < modified_ns;
    for left in listed.iter().filter(|object| is_left(object.modified_ns)) {
        // Those of another user stay.
        let _ = store.delete(&left.name);
    }
    let nearest_ns = modified_ns.clamp(*during.start(), *during.end());
    Ok(Some(i128::from(modified_ns) - i128::from(nearest_ns)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::{MemoryStore, Store};

    use super::*;

    #[test]
    fn the_store_ends_as_it_began() {
        let context = CommandContext::new(clap::Command::default, None, false);
        let memory = Arc::new(MemoryStore::new());
        let store: SharedStore = memory.clone();
        let trial = WriteTrial::run(&context, &store).expect("memory takes writes");
        assert_eq!(trial.seconds.len(), WRITES);
        assert!(memory.list("").expect("list").is_empty());
    }

    #[test]
    fn clocks_that_differ_by_seconds_are_reported() {
        for (ahead_s, status, words) in [
            (0, CheckStatus::Works, "agree"),
            (-2, CheckStatus::Works, "agree"),
            (90, CheckStatus::Limited, "90 s ahead of"),
            (-3, CheckStatus::Limited, "3 s behind"),
        ] {
            let ahead_ns = Some(ahead_s * 1_000_000_000);
            let trial = WriteTrial { seconds: Vec::new(), ahead_ns };
            let check = trial.clock_check().expect("the store told");
            assert_eq!(check.status, status);
            assert!(check.finding.contains(words), "{}", check.finding);
        }
    }

    #[test]
    fn the_median_of_writes_is_shown() {
        let trial = WriteTrial { seconds: vec![0.5, 0.1, 9.0, 0.2, 0.3], ahead_ns: None };
        assert_eq!(milliseconds(trial.median_seconds()), "300 ms");
        assert_eq!(milliseconds(0.00123), "1.23 ms");
        assert!(trial.clock_check().is_none());
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker advise load` and `esker advise replay`: a trace on a storage system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use esker_advisor::player::{
    BigFileTarget, LoadState, ObjectTarget, PlanDigest, PlanOptions, ReplayPacing, ReplayPlan,
    ReplayResult, ReplayTarget, RequestLayout, SHARED_FILE_PREFIX, SharedFileTarget, replay,
};
use esker_base::clock::SystemClock;
use esker_base::{Error, Kind, Random, Result, shell_word};
use esker_workbench::backend::MPI_IO_PREFIX;
use esker_workbench::environment::RunEnvironment;
use esker_workbench::summary::duration;
use serde_json::json;

use super::{mpi_replay, open_trace};
use crate::change::SessionSettings;
use crate::commands::measure::workbench::ranks::RankLaunch;
use crate::commands::measure::workbench::target;
use crate::context::CommandContext;
use crate::interrupt;
use crate::{text, usage};

/// Where the kernel takes the order to drop its caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// The targets of replays.
pub const REPLAY_TARGETS: &str = "\
Targets:
  /scratch/replay    a new or empty directory: each file of the trace is one file (big file), or with
                     --small-files each request is a file that is opened, accessed and closed;
                     small:/scratch/replay is the same
  mpiio:/scratch/replay
                     a directory as above, whose files MPI-IO reads and writes
  driver:LIBRARY:/scratch/db
                     each request is a key of LevelDB, RocksDB or another key-value store
  shared:NAME        files of Esker on --store that the ranks share
  indexed:NAME       records of an indexed directory on --store, for requests of one size that read
  store:memory: s3://bucket/path esker:NAME postgresql://… mongodb://… redis://…
                     each request is an object, as in `esker workbench run --help`";

/// Where and how a trace is replayed.
#[derive(Args)]
pub struct TraceReplayArguments {
    /// The trace
    trace: PathBuf,
    /// Where to replay it
    target: String,
    /// In a directory, make a small file of each request
    #[arg(long)]
    small_files: bool,
    /// By MPI-IO, access files collectively; the ranks are processes of mpirun
    #[arg(long, conflicts_with = "small_files")]
    collective: bool,
    /// Read what the trace writes, as in the paper
    #[arg(long)]
    as_reads: bool,
}

impl TraceReplayArguments {
    /// The target.
    #[cfg(feature = "mpi")]
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// True if all ranks access files together.
    #[cfg(feature = "mpi")]
    pub(super) fn is_collective(&self) -> bool {
        self.collective
    }

    /// The calls of the trace.
    pub(super) fn plan(&self) -> Result<ReplayPlan> {
        let options = PlanOptions { writes_as_reads: self.as_reads };
        ReplayPlan::read(&open_trace(&self.trace)?, options)
            .map_err(|error| error.within(self.trace.display()))
    }

    fn open(&self, context: &CommandContext) -> Result<Box<dyn ReplayTarget>> {
        if self.collective {
            usage::exit(
                "--collective takes ranks that are processes, and a target mpiio:DIRECTORY: \
                         `mpirun -n RANKS esker advise replay …`",
            );
        }
        open_target(context, &self.target, self.small_files)
    }

    /// True if `target` has the data of `plan`, false if it has none.
    fn is_loaded(
        &self,
        store: Option<&str>,
        target: &dyn ReplayTarget,
        plan: &ReplayPlan,
    ) -> Result<bool> {
        let state = match target.load_state()? {
            LoadState::Absent if self.has_other_files(target) => {
                (Kind::Exists, "has the data of another kind of replay")
            }
            LoadState::Absent => return Ok(false),
            LoadState::Complete(data) if data.plan == PlanDigest::of(plan) => return Ok(true),
            LoadState::Complete(_) => (Kind::Exists, "has the data of another replay"),
            LoadState::Partial(_) => {
                (Kind::Conflict, "has a part of the data: a load was interrupted or is running")
            }
        };
        let (kind, what) = state;
        let (target, cleanup) = (target.target(), cleanup_command(store, &target.target()));
        Err(Error::new(kind, format!("{target} {what}; `{cleanup}` removes it")))
    }

    /// True if the directory of `target` has small files instead of big ones, or the reverse.
    fn has_other_files(&self, target: &dyn ReplayTarget) -> bool {
        let directory = target.target();
        let directory = directory.strip_prefix(MPI_IO_PREFIX).unwrap_or(&directory);
        let directory = Path::new(directory);
        if !directory.is_dir() {
            return false;
        }
        match target.layout() {
            RequestLayout::SmallFile => BigFileTarget::has_data(directory),
            RequestLayout::File => ObjectTarget::has_small_files(directory),
            RequestLayout::SharedFile | RequestLayout::Object => false,
        }
    }

    /// Loads `plan`; a signal says from now on what is left.
    fn load(
        &self,
        store: Option<&str>,
        target: &dyn ReplayTarget,
        plan: &ReplayPlan,
    ) -> Result<()> {
        advise_cleanup(store, target, false);
        target.load(plan)
    }
}

/// The command that removes the data of a replay; `store` is the one that the user named.
fn cleanup_command(store: Option<&str>, target: &str) -> String {
    let store = store.filter(|_| is_in_store(target));
    let store = store.map(|url| format!(" --store {}", shell_word(url.as_bytes())));
    format!("esker advise cleanup {}{}", shell_word(target.as_bytes()), store.unwrap_or_default())
}

/// What begins targets in a store of Esker.
const LIBRARY_TARGETS: [&str; 3] = ["esker:", "indexed:", SHARED_FILE_PREFIX];

/// Begins a directory in which each request is a small file.
pub(super) const SMALL_FILES_PREFIX: &str = "small:";

/// A target in the memory of the command.
const MEMORY_TARGET: &str = "store:memory:";

/// True if `target` is in the store of `--store`.
pub(super) fn is_in_store(target: &str) -> bool {
    LIBRARY_TARGETS.iter().any(|prefix| target.starts_with(prefix))
}

/// True if `target` ends with the process.
fn is_memory(target: &str) -> bool {
    target.starts_with(MEMORY_TARGET)
}

/// Makes a signal say how to remove the data at `target`, which was there before if `is_kept`.
fn advise_cleanup(store: Option<&str>, target: &dyn ReplayTarget, is_kept: bool) {
    let target = target.target();
    // Memory ends with the process, and the session of a library with the interruption.
    let is_gone = is_memory(&target) || !is_kept && is_in_store(&target);
    interrupt::advise(match is_gone {
        true => "nothing is left".to_owned(),
        false => {
            format!("the data at {target} stays; `{}` removes it", cleanup_command(store, &target))
        }
    });
}

/// Exits if nothing that is at `target` outlives the command.
fn check_can_keep(target: &str) {
    if is_memory(target) {
        usage::exit(format!("{target} ends with the command, so no data can be kept there"));
    }
}

/// Opens a target.
pub(super) fn open_target(
    context: &CommandContext,
    target: &str,
    small_files: bool,
) -> Result<Box<dyn ReplayTarget>> {
    if let Some(directory) = target.strip_prefix(SMALL_FILES_PREFIX) {
        return open_target(context, directory, true);
    }
    let mpi_directory = target.strip_prefix(MPI_IO_PREFIX);
    let is_directory = target::is_directory(target);
    if small_files && !is_directory && mpi_directory.is_none() {
        usage::exit("--small-files is for directories");
    }
    if is_directory && Path::new(target).is_file() {
        let what = format!("{target} is a file; name a new or an empty directory");
        return Err(Error::new(Kind::NotADirectory, what));
    }
    if is_directory && !small_files {
        target::check_is_path(target)?;
        return Ok(Box::new(BigFileTarget::new(Path::new(target))));
    }
    if let Some(directory) = mpi_directory.filter(|_| !small_files) {
        return mpi_replay::open(Path::new(directory));
    }
    if let Some(name) = target.strip_prefix(SHARED_FILE_PREFIX) {
        let name = target::library_name(name);
        let options = SessionSettings::for_few().options(context);
        let (store, clock) = (context.store()?, Arc::new(SystemClock));
        let random = Random::from_system();
        return Ok(Box::new(SharedFileTarget::open(store, name, options, clock, random)?));
    }
    let backend = target::open(context, target, None)?;
    Ok(Box::new(ObjectTarget::new(backend)?))
}

/// Make the data that a trace reads, for replays
///
/// `replay` does this itself unless the target was loaded. `replay` without --keep removes it.
#[derive(Args)]
#[command(after_help = format!("{REPLAY_TARGETS}

Example:
  esker advise load app.arrow /scratch/replay"))]
pub struct AdviseLoad {
    #[command(flatten)]
    replay: TraceReplayArguments,
}

impl AdviseLoad {
    /// Loads the data.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        check_can_keep(&self.replay.target);
        let plan = self.replay.plan()?;
        let target = self.replay.open(context)?;
        if self.replay.is_loaded(context.given_store(), &*target, &plan)? {
            let what = format!("{} was loaded before", target.target());
            return Err(Error::new(Kind::Exists, what));
        }
        self.replay.load(context.given_store(), &*target, &plan)?;
        target.finish(true)?;
        let requests = text::counted(plan.requests, "request");
        if context.out.is_json() {
            let (system, requests) = (target.system(), plan.requests);
            return context.out.json(json!({"system": system, "requests": requests}));
        }
        context.out.line(format!("loaded the data of {requests}"))
    }
}

/// Remove the data that a replay left, as it was interrupted, or kept
///
/// Removes only what loads and replays made: other files stay.
#[derive(Args)]
#[command(after_help = "Example:\n  esker advise cleanup /scratch/replay")]
pub struct AdviseCleanup {
    /// The target of the replay
    target: String,
}

impl AdviseCleanup {
    /// Removes the data.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        // The files of MPI-IO are files, and a directory has what tells small ones from others.
        let prefixes = [MPI_IO_PREFIX, SMALL_FILES_PREFIX];
        let directory = prefixes.iter().find_map(|prefix| self.target.strip_prefix(prefix));
        let target = directory.unwrap_or(&self.target);
        let is_directory = target::is_directory(target);
        if is_directory && !Path::new(target).exists() {
            let what = format!("{target} does not exist, so it has no data of a replay");
            return Err(Error::new(Kind::NotFound, what));
        }
        let small_files = is_directory && !BigFileTarget::has_data(Path::new(target));
        let target = open_target(context, target, small_files)?;
        target.clear()?;
        // A URL may have a password, which this name has not.
        let name = target.target();
        if context.out.is_json() {
            return context.out.json(json!({"removed": name}));
        }
        context.out.line(format!("{name}: the data is removed"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TimingChoice {
    /// Calls begin when they do in the trace
    Traced,
    /// Calls begin as soon as the one before has returned
    Fast,
}

/// Replay a trace on a storage system
///
/// Each rank is a thread, or with mpirun and a target mpiio: a process. The data that the trace reads
/// is made first, and taken out of the page cache. Every byte that is read is checked: a wrong one
/// stops the replay and is named. With --timing traced calls begin at the times of the trace, and the
/// result says how late they were.
#[derive(Args)]
#[command(after_help = format!("{REPLAY_TARGETS}

Examples:
  esker advise replay app.arrow /scratch/replay
  esker advise replay app.arrow /scratch/replay --small-files --as-reads
  esker advise replay app.arrow driver:./libesker_leveldb.so:/scratch/db --timing traced
  mpirun -n 8 esker advise replay app.arrow mpiio:/scratch/replay --collective"))]
pub struct AdviseReplay {
    #[command(flatten)]
    replay: TraceReplayArguments,
    /// When calls begin
    #[arg(long, value_enum, default_value = "fast", value_name = "WHEN")]
    timing: TimingChoice,
    /// Also drop all caches of the machine, which takes root; by default only those of the data
    #[arg(long)]
    drop_all_caches: bool,
    /// Keep the data for later replays
    #[arg(long)]
    keep: bool,
}

impl AdviseReplay {
    /// Replays the trace.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        if self.replay.target.starts_with(MPI_IO_PREFIX) && !self.replay.small_files {
            let launch = RankLaunch::of(None, &self.replay.target)?;
            if launch.ranks().is_some() {
                let measured = mpi_replay::replay_in_processes(&self, &launch)?;
                return measured.map_or(Ok(()), |measured| report(context, &measured));
            }
        }
        if self.keep {
            check_can_keep(&self.replay.target);
        }
        let plan = self.replay.plan()?;
        let target = self.replay.open(context)?;
        let is_own = self.prepare(context.given_store(), &*target, &plan)?;
        let measured = self
            .drop_caches(&*target)
            .and_then(|()| replay(&*target, &plan, self.pacing(), processors(), &SystemClock));
        report(context, &self.finish(context.given_store(), &*target, measured, is_own)?)
    }

    /// The trace and the target.
    #[cfg(feature = "mpi")]
    pub(super) fn arguments(&self) -> &TraceReplayArguments {
        &self.replay
    }

    /// When calls begin.
    pub(super) fn pacing(&self) -> ReplayPacing {
        match self.timing {
            TimingChoice::Traced => ReplayPacing::Traced,
            TimingChoice::Fast => ReplayPacing::Fast,
        }
    }

    /// Loads `plan` unless `target` was loaded before; returns true if it did.
    pub(super) fn prepare(
        &self,
        store: Option<&str>,
        target: &dyn ReplayTarget,
        plan: &ReplayPlan,
    ) -> Result<bool> {
        if self.replay.is_loaded(store, target, plan)? {
            advise_cleanup(store, target, true);
            return Ok(false);
        }
        self.replay.load(store, target, plan)?;
        Ok(true)
    }

    /// Removes the data, or keeps it: for later replays, to look for what was read wrong, and if the
    /// replay failed and the data is not its own. `is_own` is true if this command loaded it.
    pub(super) fn finish<T>(
        &self,
        store: Option<&str>,
        target: &dyn ReplayTarget,
        measured: Result<T>,
        is_own: bool,
    ) -> Result<T> {
        let is_wrong = measured.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt);
        let has_failed = measured.is_err();
        let is_kept =
            !is_memory(&self.replay.target) && (self.keep || is_wrong || has_failed && !is_own);
        let left = match is_kept {
            // A replay that failed changes nothing in a snapshot that was there before.
            true => target.finish(is_own || !has_failed),
            false => target.clear(),
        };
        let error = match (measured, left) {
            (Ok(measured), Ok(())) => {
                if !is_kept {
                    let removed = "the data was removed, and the result not yet printed";
                    interrupt::advise(removed.to_owned());
                }
                return Ok(measured);
            }
            (Ok(_), Err(error)) => return Err(error),
            (Err(error), Ok(())) if !is_kept => return Err(error),
            (Err(error), _) => error,
        };
        let cleanup = cleanup_command(store, &target.target());
        let what = format!("{}; the data stays, and `{cleanup}` removes it", error.context());
        Err(Error::new(error.kind(), what))
    }

    /// Drops caches, before the replay.
    pub(super) fn drop_caches(&self, target: &dyn ReplayTarget) -> Result<()> {
        target.drop_caches()?;
        if self.drop_all_caches {
            let failed = |error| Error::io(error, "--drop-all-caches, which takes root: write");
            std::fs::write(DROP_CACHES, "3\n").map_err(failed)?;
        }
        Ok(())
    }
}

/// The processors that ranks share.
pub(super) fn processors() -> u32 {
    RunEnvironment::capture(None).processors
}

fn report(context: &CommandContext, result: &ReplayResult) -> Result<()> {
    if context.out.is_json() {
        let timing = result.timing.as_ref().map(|timing| {
            json!({
                "late_p50_ns": timing.late_p50_ns,
                "late_p99_ns": timing.late_p99_ns,
                "late_max_ns": timing.late_max_ns,
                "late_p50_share": timing.share(timing.late_p50_ns, result),
                "late_p99_share": timing.share(timing.late_p99_ns, result),
                "span_error": timing.span_error(),
            })
        });
        return context.out.json(json!({
            "system": result.system, "ranks": result.ranks, "requests": result.requests,
            "bytes": result.bytes, "metadata_operations": result.metadata_operations,
            "skipped": result.skipped, "seconds": result.seconds,
            "io_seconds": result.io_seconds, "mb_per_second": result.rate(),
            "p50_ns": result.latency.quantile_ns(0.5), "p99_ns": result.latency.quantile_ns(0.99),
            "max_ns": result.latency.max_ns, "timing": timing,
        }));
    }
    let quantile = |share| duration(result.latency.quantile_ns(share) as f64);
    context.out.line(format!(
        "{}: {} of {}, {} in {} of I/O: {:.1} MB/s",
        result.system,
        text::counted(result.requests, "request"),
        text::counted(u64::from(result.ranks), "rank"),
        text::bytes(result.bytes),
        duration(result.io_seconds * 1e9),
        result.rate()
    ))?;
    context.out.line(format!(
        "calls: p50 {}, p99 {}, max {}; {} opened or closed, {} left out",
        quantile(0.5),
        quantile(0.99),
        duration(result.latency.max_ns as f64),
        result.metadata_operations,
        result.skipped
    ))?;
    let Some(timing) = &result.timing else { return Ok(()) };
    let late =
        |ns: u64| format!("{} ({:.2} %)", duration(ns as f64), 100.0 * timing.share(ns, result));
    context.out.line(format!(
        "late: p50 {}, p99 {} of the mean time between calls; whole replay off by {:.2} %",
        late(timing.late_p50_ns),
        late(timing.late_p99_ns),
        100.0 * timing.span_error()
    ))
}

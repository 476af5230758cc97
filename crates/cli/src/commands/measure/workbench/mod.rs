// SPDX-License-Identifier: Apache-2.0
//! `esker workbench`: measures metadata latencies of a directory, a store, the library, a database or
//! a key-value store.

mod paper;
pub mod ranks;
pub mod target;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use esker_base::{Error, Kind, Result};
use esker_workbench::backend::MPI_IO_PREFIX;
use esker_workbench::compare::ComparisonVerdict::TooFewRepetitions;
use esker_workbench::compare::{compare, left_out};
use esker_workbench::io500::HARD_FILE_BYTES;
use esker_workbench::mix::OperationMix;
use esker_workbench::options::RunOptions;
use esker_workbench::pace::Arrivals;
use esker_workbench::pattern::WorkingSetSize;
use esker_workbench::progress::RunProgress;
use esker_workbench::result::{OperationResult, RESULT_BYTES_MAX, RunResult};
use esker_workbench::run;
use esker_workbench::working_set::cleanup_command;
use esker_workbench::{arrow, csv, parquet, report, summary};

use self::paper::WorkbenchPaper;
use self::ranks::RankLaunch;
use self::target::TARGETS;
use crate::context::CommandContext;
use crate::interrupt;
use crate::output::notice;
use crate::output_file::{OutputFile, write_output};
use crate::rank_transport::TransportName;
use crate::{text, usage};

/// Measure the latency of metadata operations under a mixed load
///
/// Many ranks work on many small objects at once, as interactive users or as producers and
/// consumers do: each takes the oldest object of one rank's dataset (stat, read, delete) and appends a
/// new one to another rank's (create); with two ranks both are the other rank's. The size of the working set stays the same, so a
/// cache either holds it or does not. Every call is timed alone. The pattern and its letters are those
/// of MDWorkbench (Kunkel and Markomanolis, 2018).
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker workbench run /scratch/bench --repeat 3 --output ext4.json --report ext4.html
  esker workbench run esker:bench --store /scratch/store --repeat 3 --output library.json
  esker workbench compare ext4.json library.json --report both.html
  esker workbench paper /scratch/bench --to paper.html
  esker workbench cleanup /scratch/bench")]
pub struct WorkbenchCommand {
    #[command(subcommand)]
    action: WorkbenchAction,
}

#[derive(Subcommand)]
enum WorkbenchAction {
    Run(Box<WorkbenchRun>),
    Compare(WorkbenchCompare),
    Report(WorkbenchReport),
    Paper(WorkbenchPaper),
    Cleanup(WorkbenchCleanup),
}

impl WorkbenchCommand {
    /// Measures, compares, reports or cleans up.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        match self.action {
            WorkbenchAction::Run(run) => run.run(context),
            WorkbenchAction::Compare(compare) => compare.run(context),
            WorkbenchAction::Report(report) => report.run(),
            WorkbenchAction::Paper(paper) => paper.run(context),
            WorkbenchAction::Cleanup(cleanup) => cleanup.run(context),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ArrivalChoice {
    /// At equal intervals
    Constant,
    /// At random, as of many independent users
    Poisson,
}

/// Create a working set, measure, and remove it again
///
/// Phases: precreate (-D datasets of -P objects a rank), benchmark (-I iterations per dataset, each
/// stat, read, delete and create), cleanup. With --keep the working set stays, and a later run with
/// the same -N -D -P -S -O begins with the benchmark.
///
/// A closed loop (the default) calls as fast as the service answers; --waiting T then waits T times
/// the duration of each call. An open loop (--rate) begins calls at fixed times whatever the service
/// does, and counts the latency from the intended time: a service that stalls for a second delays
/// all calls of that second, and the percentiles show it.
///
/// Ranks are threads. Under `esker run`, `srun` or `mpirun` each process is a rank; all must reach
/// the target. They meet in the store, or MPI connects them (--transport mpi).
#[derive(Args)]
#[command(after_help = format!("{TARGETS}

Examples:
  esker workbench run /scratch/bench -N 8 -D 10 -P 1000 -I 200 --waiting 0,4
  esker workbench run /scratch/bench --rate 500,1000,2000 --arrivals poisson
  esker workbench run /scratch/bench --mix stat=60,read=30,create=5,delete=5
  esker workbench run /scratch/bench --saturation --stonewall 5 -P 100000 -I 100000
  esker workbench run /scratch/bench --io500 --stonewall 300 -P 10000000
  mpirun -n 16 esker workbench run mpiio:/scratch/bench --repeat 3 --output mpiio.json"))]
struct WorkbenchRun {
    /// What to measure
    target: String,
    /// N: ranks; as many as processors, at least 2, unless given
    #[arg(short = 'N', long, value_name = "N")]
    ranks: Option<u32>,
    /// Kind of ranks; by default threads, but if `esker run`, srun or mpirun started this process,
    /// processes over TCP, or over MPI if the target is mpiio:
    #[arg(long, value_enum, value_name = "TRANSPORT")]
    transport: Option<TransportName>,
    /// D: datasets (directories) per rank
    #[arg(short = 'D', long, default_value_t = 1, value_name = "N")]
    datasets: u32,
    /// P: objects (files) precreated per dataset
    #[arg(short = 'P', long, default_value_t = 2_000, value_name = "N")]
    objects: u64,
    /// I: iterations of a benchmark phase per dataset; at most P
    #[arg(short = 'I', long, default_value_t = 1_000, value_name = "N")]
    iterations: u64,
    /// S: bytes per object, such as 3901 or 64K
    #[arg(short = 'S', long, default_value = "3901", value_name = "SIZE",
          value_parser = crate::quantity::bytes)]
    size: u64,
    /// O: distance in ranks between the writer and the reader of a dataset
    #[arg(short = 'O', long, default_value_t = 1, value_name = "N")]
    offset: u32,
    /// Repetitions of each benchmark phase; comparisons need 3 or more
    #[arg(long, default_value_t = 1, value_name = "N")]
    repeat: u32,
    /// T: after each call wait this many times its duration; several as 0,1,4
    #[arg(long, value_delimiter = ',', value_name = "T,…")]
    waiting: Vec<f64>,
    /// Double T until latencies no longer fall: then the service is not overloaded
    #[arg(long)]
    adaptive: bool,
    /// Open loop at this rate of all ranks, in calls per second; several as 100,200
    #[arg(long = "rate", value_delimiter = ',', value_name = "RATE,…")]
    rates: Vec<f64>,
    /// Open loops at 10 % to 110 % of the rate of the closed loop
    #[arg(long)]
    saturation: bool,
    /// When calls of an open loop begin
    #[arg(long, value_enum, default_value = "constant", value_name = "HOW")]
    arrivals: ArrivalChoice,
    /// Only stat and read in the benchmark phases
    #[arg(long)]
    read_only: bool,
    /// Call operations in random order at these shares, such as stat=60,read=30,create=5,delete=5
    ///
    /// Operations: create, stat, read, delete, list, list-attributes. Creates and deletes have the
    /// same weight, so that the working set keeps its size. A rank makes 4 calls for each of the I
    /// iterations and D datasets, as without a mix.
    #[arg(long, conflicts_with = "read_only", value_name = "OPERATION=WEIGHT,…")]
    mix: Option<OperationMix>,
    /// Also list datasets, rename objects, and make and remove datasets
    #[arg(long)]
    names: bool,
    /// Let all ranks race to create the same objects: I races, one winner each
    #[arg(long)]
    races: bool,
    /// Run the metadata phases of IO500 with P files a rank instead, and print their score
    #[arg(long, conflicts_with_all = [
        "datasets", "iterations", "size", "repeat", "waiting", "adaptive", "rates", "saturation",
        "arrivals", "read_only", "mix", "names", "races", "keep",
    ])]
    io500: bool,
    /// End benchmark phases after this many seconds, once all ranks have done as much as the fastest
    #[arg(long, value_name = "SECONDS", value_parser = time_limit)]
    stonewall: Option<f64>,
    /// Keep the working set for later runs
    #[arg(long)]
    keep: bool,
    /// Keep time, rank and path of every call that takes this many milliseconds
    #[arg(long, default_value_t = 100.0, value_name = "MS")]
    outlier: f64,
    /// Seed of arrivals and samples
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Name of the run in comparisons and reports; the target unless given
    #[arg(long, default_value = "", value_name = "TEXT")]
    label: String,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the result as a table
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the table as a Parquet file
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Write the table as an Arrow IPC file (Feather)
    #[arg(long, value_name = "FILE")]
    arrow: Option<PathBuf>,
    /// Write the result as an HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl WorkbenchRun {
    fn run(self, context: &CommandContext) -> Result<()> {
        let launch = RankLaunch::of(self.transport, &self.target)?;
        if let Some(ranks) = launch.ranks() {
            target::check_serves_processes(&self.target, ranks)?;
        }
        let ranks = launch.ranks().or(self.ranks).unwrap_or_else(default_ranks);
        let options = self.options(ranks);
        usage::value_of(options.check());
        // A process that failed alone would leave the other ranks waiting.
        let files = launch.ranks().is_none().then(|| ResultFiles::prepare(&self)).transpose()?;
        let counts = Arc::new(RunProgress::new(ranks));
        let measured = launch.measure(context, &options, &counts, |launch| {
            let backend = target::open(context, &self.target, Some(launch))?;
            let cleanup = cleanup_command(&backend.target());
            interrupt::advise(format!("the working set stays; `{cleanup}` removes it"));
            Ok(backend)
        })?;
        match measured {
            Some(result) => {
                let files = files.map_or_else(|| ResultFiles::prepare(&self), Ok)?;
                self.publish(context, files, &result)
            }
            None => Ok(()),
        }
    }

    fn options(&self, ranks: u32) -> RunOptions {
        let size = WorkingSetSize {
            ranks,
            datasets: self.datasets,
            objects: self.objects,
            iterations: if self.io500 { self.objects } else { self.iterations },
            object_bytes: if self.io500 { HARD_FILE_BYTES } else { self.size },
            rank_offset: self.offset,
        };
        let is_open_only = !self.rates.is_empty() && self.waiting.is_empty();
        let waiting_factors = match self.waiting.is_empty() {
            true if is_open_only => Vec::new(),
            true => vec![0.0],
            false => self.waiting.clone(),
        };
        RunOptions {
            label: self.label.clone(),
            repeat: self.repeat,
            waiting_factors,
            adaptive: self.adaptive,
            rates: self.rates.clone(),
            saturation: self.saturation,
            arrivals: match self.arrivals {
                ArrivalChoice::Constant => Arrivals::Constant,
                ArrivalChoice::Poisson => Arrivals::Poisson,
            },
            read_only: self.read_only,
            mix: self.mix.clone(),
            names: self.names,
            races: self.races,
            io500: self.io500,
            stonewall_ns: self.stonewall.map(|seconds| (seconds * 1e9) as u64),
            keep: self.keep,
            outlier_ns: (self.outlier * 1e6) as u64,
            seed: self.seed,
            ..RunOptions::new(size)
        }
    }

    fn publish(
        &self,
        context: &CommandContext,
        files: ResultFiles,
        result: &RunResult,
    ) -> Result<()> {
        files.write(result)?;
        match context.out.is_json() {
            true => context.out.report(result)?,
            false => context.out.raw(summary::text(result).as_bytes())?,
        }
        check_content(result)?;
        check_calls(result)?;
        result.end_failure.as_ref().map_or(Ok(()), |failure| Err(failure.error()))
    }
}

/// The files of a result, of which it is known that they can be written.
struct ResultFiles {
    json: Option<OutputFile>,
    csv: Option<OutputFile>,
    parquet: Option<OutputFile>,
    arrow: Option<OutputFile>,
    report: Option<OutputFile>,
}

impl ResultFiles {
    fn prepare(options: &WorkbenchRun) -> Result<Self> {
        let prepare = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::prepare).transpose();
        Ok(Self {
            json: prepare(&options.output)?,
            csv: prepare(&options.csv)?,
            parquet: prepare(&options.parquet)?,
            arrow: prepare(&options.arrow)?,
            report: prepare(&options.report)?,
        })
    }

    fn write(self, result: &RunResult) -> Result<()> {
        if let Some(file) = self.json {
            file.write_bytes(&serde_json::to_vec(result).expect("numbers and words"))?;
        }
        if let Some(file) = self.csv {
            file.write_bytes(csv::table(result).as_bytes())?;
        }
        if let Some(file) = self.parquet {
            file.write_bytes(&parquet::file(result))?;
        }
        if let Some(file) = self.arrow {
            file.write_bytes(&arrow::file(result))?;
        }
        if let Some(file) = self.report {
            file.write_bytes(report::page(std::slice::from_ref(result)).as_bytes())?;
        }
        Ok(())
    }
}

/// Compare the results of runs with the first
///
/// Each rate and latency is compared by a bootstrap over repetitions and ranks; the verdict is
/// faster, slower or no difference seen, at 95 %. Runs need --repeat 3 or more.
#[derive(Args)]
#[command(
    after_help = "Example:\n  esker workbench compare before.json after.json --report b.html"
)]
struct WorkbenchCompare {
    /// Results that `run --output` wrote
    #[arg(required = true, num_args = 2.., value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// Also write an HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl WorkbenchCompare {
    fn run(self, context: &CommandContext) -> Result<()> {
        let results = read_all(&self.results)?;
        if let Some(path) = &self.report {
            check_is_no_input(path, &self.results)?;
            write_output(path, report::page(&results).as_bytes())?;
        }
        let (base, others) = results.split_first().expect("clap asks for two");
        for other in others {
            let figures = compare(base, other);
            for (label, phase) in left_out(base, other) {
                let label = text::printable(label.as_bytes());
                notice(format!(
                    "{phase} of {label} is not compared: the other run has no such phase"
                ));
            }
            if context.out.is_json() {
                figures.iter().try_for_each(|figure| context.out.report(figure))?;
                continue;
            }
            // A result may come from somebody else.
            let [other, base] = [other, base].map(|run| text::printable(run.label().as_bytes()));
            context.out.line(format!("{other} compared with {base}"))?;
            for figure in &figures {
                let cells = report::compared_row(figure);
                context.out.line(format!(
                    "  {:<20} {:<16} {:>10} {:>10}  × {:<6} {:<14} {}",
                    cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6]
                ))?;
            }
            if figures.iter().any(|figure| figure.verdict == TooFewRepetitions) {
                context.out.line("no verdict: the phase ran once; use --repeat 3 or more")?;
            }
        }
        Ok(())
    }
}

/// Write results as one HTML page
///
/// The page has everything in it and opens from disk, without a network. Several results are shown
/// side by side and compared with the first.
#[derive(Args)]
#[command(after_help = "Example:\n  esker workbench report a.json b.json --to both.html")]
struct WorkbenchReport {
    /// Results that `run --output` wrote
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// The page
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl WorkbenchReport {
    fn run(self) -> Result<()> {
        let results = read_all(&self.results)?;
        check_is_no_input(&self.to, &self.results)?;
        write_output(&self.to, report::page(&results).as_bytes())
    }
}

/// Fails if writing a page to `path` would replace one of the results `inputs`.
fn check_is_no_input(path: &Path, inputs: &[PathBuf]) -> Result<()> {
    let is_same = |input: &PathBuf| {
        let places = [path, input].map(std::fs::canonicalize);
        matches!(&places, [Ok(page), Ok(input)] if page == input)
    };
    if inputs.iter().any(is_same) {
        let what = format!("{} is a result; write the page to another file", path.display());
        return Err(Error::new(Kind::Invalid, what));
    }
    Ok(())
}

/// Remove the working set of a run that was interrupted, or kept it
///
/// Removes only what a working set has: other files stay, and make the command fail.
#[derive(Args)]
#[command(after_help = "Example:\n  esker workbench cleanup /scratch/bench")]
struct WorkbenchCleanup {
    /// The target of the run
    target: String,
}

impl WorkbenchCleanup {
    fn run(self, context: &CommandContext) -> Result<()> {
        // What MPI-IO has written is removed without it.
        let target = self.target.strip_prefix(MPI_IO_PREFIX).unwrap_or(&self.target);
        if target::is_directory(target) && !Path::new(target).exists() {
            let what = "does not exist, so there is no working set";
            return Err(Error::new(Kind::NotFound, format!("{target} {what}")));
        }
        let backend = target::open(context, target, None)?;
        let cleared = run::cleanup(&*backend);
        let objects = cleared.inspect_err(|_| drop(backend.finish(false)))?;
        if context.out.is_json() {
            return context.out.json(serde_json::json!({ "removed": objects }));
        }
        context.out.line(format!("removed {}", text::counted(objects, "object")))
    }
}

/// Seconds that a phase may take.
fn time_limit(text: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let is_limit = (1e-9..=1e9).contains(&seconds);
    if is_limit {
        Ok(seconds)
    } else {
        Err("a time limit is over 0 s, and at most 1e9 s".to_owned())
    }
}

/// As many ranks as processors, and at least two: a rank alone reads only its own objects.
pub(super) fn default_ranks() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(processors).unwrap_or(u32::MAX).max(2)
}

/// Fails if the service returned wrong bytes: nothing else about it matters then.
pub(super) fn check_content(result: &RunResult) -> Result<()> {
    let corrupt = format!("{:?}", Kind::Corrupt);
    let operations = result.phases.iter().flat_map(|phase| &phase.operations);
    let wrong: u64 = operations.filter_map(|found| found.failures.get(&corrupt)).sum();
    if wrong == 0 {
        return Ok(());
    }
    let what = format!("{}: {wrong} reads returned bytes that were not written", result.target);
    Err(Error::new(Kind::Corrupt, what))
}

/// Fails if an operation never succeeded in a phase: then the service did not do what was measured.
fn check_calls(result: &RunResult) -> Result<()> {
    for phase in &result.phases {
        let never = |found: &&OperationResult| found.service.count == 0 && found.failed() > 0;
        if let Some(found) = phase.operations.iter().find(never) {
            let (target, plan, operation) = (&result.target, &phase.plan, found.operation);
            let first = found.first_failure.as_deref().unwrap_or_default();
            let what = format!("{target}: {plan}: every {operation} failed; the first: {first}");
            return Err(Error::new(Kind::Unavailable, what));
        }
    }
    Ok(())
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<RunResult>> {
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<RunResult> {
    let failed = |error| Error::io(error, format!("read {}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // The size that a pipe or a device states is none.
    file.take(RESULT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > RESULT_BYTES_MAX {
        let what =
            format!("{} has over {RESULT_BYTES_MAX} bytes, more than any result", path.display());
        return Err(Error::new(Kind::TooLarge, what));
    }
    RunResult::parse(&path.display().to_string(), &bytes)
}

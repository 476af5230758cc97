// SPDX-License-Identifier: Apache-2.0
//! `esker advise measure`: a design of experiments on storage systems.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use esker_advisor::features::StorageConfiguration;
use esker_advisor::measure::{
    ExperimentDesign, MeasureOptions, MeasureSummary, MeasuredSystem, measure,
};
use esker_advisor::observation::{Observation, STORE_OPTION, StorageDevice, write_parquet_rows};
use esker_advisor::parquet_table::PARQUET_MAGIC;
use esker_advisor::pattern::TracePattern;
use esker_base::clock::SystemClock;
use esker_base::{Result, without_password};
use esker_workbench::backend::{DRIVER_PREFIX, MPI_IO_PREFIX};
use serde_json::json;

use super::model::read_file;
use super::mpi_replay;
use super::replay::{SMALL_FILES_PREFIX, is_in_store, open_target, processors};
use crate::commands::measure::workbench::target;
use crate::context::CommandContext;
use crate::interrupt;
use crate::output_file::{OutputFile, check_is_not_read};
use crate::usage;

#[derive(Clone, Copy, ValueEnum)]
enum DeviceChoice {
    /// Hard disks
    Hdd,
    /// Solid-state disks
    Ssd,
}

impl DeviceChoice {
    const fn device(self) -> StorageDevice {
        match self {
            Self::Hdd => StorageDevice::Hdd,
            Self::Ssd => StorageDevice::Ssd,
        }
    }
}

/// Servers and nodes that can be emulated, of each kind.
const EMULATED_MAX: i64 = 1_024;

/// Measure a design of experiments, as rows of CSV and Parquet
///
/// All combinations of the patterns, request sizes, gaps, shifts and processes run on all systems in
/// random order, and then again (--repeat). A row is durable before the next run begins; the same
/// command again goes on where the last one ended. Replays are as fast as possible, with caches dropped
/// before.
///
/// With --emulate-… each call takes at least as long as on that many servers, metadata servers and
/// nodes with such devices would take, and the rows say so.
#[derive(Args)]
#[command(after_help = "\
Systems:
  NAME=TARGET        a directory (big files), or a target of `esker advise replay`
  NAME=small:DIR     a directory, with a small file for each request

Example:
  esker advise measure rows.csv --system file=/scratch/m --system small=small:/scratch/s \\
    --system leveldb=driver:./libesker_leveldb.so:/scratch/db \\
    --pattern hpio,lanl-app1 -r 4K,64K -g 0,4K -p 1,4 --seconds 600")]
pub struct AdviseMeasure {
    /// The rows; an existing file is continued
    rows: PathBuf,
    /// Also write all rows as Parquet, when the measurement ends
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// A system and its name in the rows; several are allowed
    #[arg(long = "system", required = true, value_name = "NAME=TARGET")]
    systems: Vec<String>,
    /// Patterns of `esker advise synth`
    #[arg(long = "pattern", required = true, value_delimiter = ',', value_name = "PATTERN,…",
          value_parser = PossibleValuesParser::new(TracePattern::ALL.map(TracePattern::name)))]
    patterns: Vec<String>,
    /// r: bytes of a request
    #[arg(short = 'r', long, default_value = "64K", value_delimiter = ',', value_name = "SIZE,…",
          value_parser = crate::quantity::bytes)]
    request: Vec<u64>,
    /// g: bytes between requests
    #[arg(short = 'g', long, default_value = "0", value_delimiter = ',', value_name = "SIZE,…",
          value_parser = crate::quantity::bytes)]
    gap: Vec<u64>,
    /// A: bytes by which requests are shifted
    #[arg(short = 'A', long, default_value = "0", value_delimiter = ',', value_name = "SIZE,…",
          value_parser = crate::quantity::bytes)]
    shift: Vec<u64>,
    /// p: processes
    #[arg(short = 'p', long, default_value = "2", value_delimiter = ',', value_name = "N,…")]
    processes: Vec<u32>,
    /// R: bytes of each process, in whole requests or loops of the pattern, at least one
    #[arg(short = 'R', long, default_value = "4M", value_name = "SIZE",
          value_parser = crate::quantity::bytes)]
    input: u64,
    /// Write instead of reading
    #[arg(long)]
    write: bool,
    /// How often each case runs on each system
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeat: u32,
    /// Seed of the order
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// No run begins after this time
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    seconds: u64,
    /// d: the device under the systems
    #[arg(long, value_enum, default_value = "ssd", value_name = "DEVICE")]
    device: DeviceChoice,
    /// s: emulate storage servers; all storage is emulated if any of these four is given
    #[arg(long, value_delimiter = ',', value_name = "N,…",
          value_parser = clap::value_parser!(u32).range(1..=EMULATED_MAX))]
    emulate_servers: Vec<u32>,
    /// m: emulate metadata servers
    #[arg(long, value_delimiter = ',', value_name = "N,…",
          value_parser = clap::value_parser!(u32).range(1..=EMULATED_MAX))]
    emulate_metadata_servers: Vec<u32>,
    /// c: emulate nodes, over which the processes are spread
    #[arg(long, value_delimiter = ',', value_name = "N,…",
          value_parser = clap::value_parser!(u32).range(1..=EMULATED_MAX))]
    emulate_clients: Vec<u32>,
    /// d: emulate devices
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "DEVICE,…",
        conflicts_with = "device"
    )]
    emulate_device: Vec<DeviceChoice>,
}

impl AdviseMeasure {
    /// Measures.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let pattern = |name: &String| TracePattern::of_name(name).expect("clap knows the names");
        let design = ExperimentDesign {
            patterns: self.patterns.iter().map(pattern).collect(),
            request_bytes: self.request.clone(),
            gap_bytes: self.gap.clone(),
            shift_bytes: self.shift.clone(),
            processes: self.processes.clone(),
            input_bytes: self.input,
            is_write: self.write,
            storage: self.storage(),
            is_emulated: self.is_emulated(),
            repetitions: self.repeat,
            seed: self.seed,
        };
        usage::value_of(design.cases());
        self.check_files();
        let parquet = self.parquet.as_deref().map(OutputFile::prepare).transpose()?;
        let systems = measured_systems(context, &self.systems);
        // MPI cannot be initialized again for each run.
        let uses_mpi =
            self.systems.iter().any(|system| system.contains(&format!("={MPI_IO_PREFIX}")));
        let _mpi = uses_mpi.then(mpi_replay::begin).transpose()?;
        let options = MeasureOptions {
            budget_ns: self.seconds.saturating_mul(1_000_000_000),
            processors: processors(),
        };
        interrupt::advise(
            "finished rows are kept; the same command goes on, and removes the data of this run"
                .to_owned(),
        );
        let mut failed = None;
        let mut report = |row: &Observation, summary: &MeasureSummary| {
            let shown = match context.out.is_json() {
                true => context.out.report(row),
                false => context.out.line(shown_row(row, summary)),
            };
            // Whoever waits for the last one sees each.
            let shown = shown.and_then(|()| context.out.flush());
            failed = failed.take().or(shown.err());
        };
        let summary = measure(&design, &systems, &self.rows, &options, &SystemClock, &mut report)?;
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(output) = parquet {
            write_rows(output, &read_file(&self.rows)?)?;
        }
        if context.out.is_json() {
            return context.out.json(json!({
                "runs": summary.runs, "skipped": summary.skipped, "added": summary.added,
                "left": summary.left(),
            }));
        }
        context.out.line(format!(
            "{}: {} of {} runs added, {} were there, {} left",
            self.rows.display(),
            summary.added,
            summary.runs,
            summary.skipped,
            summary.left()
        ))
    }
}

impl AdviseMeasure {
    fn is_emulated(&self) -> bool {
        let counts = [&self.emulate_servers, &self.emulate_metadata_servers, &self.emulate_clients];
        counts.iter().any(|counts| !counts.is_empty()) || !self.emulate_device.is_empty()
    }

    /// The storage of the design: that of the machine, or all combinations of what is emulated, with
    /// one of what is not given.
    fn storage(&self) -> Vec<StorageConfiguration> {
        fn given<T: Copy>(values: &[T], default: T) -> Vec<T> {
            if values.is_empty() { vec![default] } else { values.to_vec() }
        }
        let mut storage = Vec::new();
        for servers in given(&self.emulate_servers, 1) {
            for metadata_servers in given(&self.emulate_metadata_servers, 1) {
                for clients in given(&self.emulate_clients, 1) {
                    for device in given(&self.emulate_device, self.device) {
                        let device = device.device();
                        let one =
                            StorageConfiguration { servers, metadata_servers, clients, device };
                        storage.push(one);
                    }
                }
            }
        }
        storage
    }

    /// Exits if the rows are not CSV, or if they would be replaced by Parquet.
    fn check_files(&self) {
        let mut start = [0; PARQUET_MAGIC.len()];
        let rows = File::open(&self.rows).and_then(|file| file.read_exact_at(&mut start, 0));
        if rows.is_ok() && start == PARQUET_MAGIC {
            usage::exit(
                "the rows are continued as CSV, and this file is Parquet: name another one",
            );
        }
        if let Some(parquet) = &self.parquet {
            check_is_not_read(parquet, [self.rows.as_path()]);
        }
    }
}

fn shown_row(row: &Observation, summary: &MeasureSummary) -> String {
    format!(
        "{} of {}: {}, {}, #{}: {:.1} MB/s",
        summary.skipped + summary.added,
        summary.runs,
        row.system,
        row.case,
        row.repetition,
        row.bandwidth()
    )
}

fn write_rows(output: OutputFile, rows: &[Observation]) -> Result<()> {
    let object = output.path().display().to_string();
    output.write(|file| Ok((write_parquet_rows(file, rows, &object)?, ())))
}

/// The systems of `NAME=TARGET`; exits if two have one name.
fn measured_systems<'a>(
    context: &'a CommandContext,
    texts: &'a [String],
) -> Vec<MeasuredSystem<'a>> {
    let systems: Vec<_> = texts.iter().map(|text| measured_system(context, text)).collect();
    for (index, MeasuredSystem { name, .. }) in systems.iter().enumerate() {
        if systems[..index].iter().any(|other| other.name == *name) {
            let what = "two systems have this name, so rows do not tell them apart";
            usage::exit(format!("--system {name}: {what}"));
        }
    }
    systems
}

/// A system of `NAME=TARGET`.
fn measured_system<'a>(context: &'a CommandContext, text: &'a str) -> MeasuredSystem<'a> {
    let Some((name, target)) = text.split_once('=').filter(|(name, _)| is_name(name)) else {
        usage::exit(format!("--system {text}: expected NAME=TARGET"));
    };
    let open = move || open_target(context, target, false);
    let target = shown_target(context, target);
    MeasuredSystem { name: name.to_owned(), target, open: Box::new(open) }
}

/// True for names that are the same in a row that is read again.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.contains(char::is_control)
}

/// The target in rows: what `esker advise replay` takes, the same for the same storage wherever the
/// command runs, without passwords.
fn shown_target(context: &CommandContext, target: &str) -> String {
    let prefixes = [SMALL_FILES_PREFIX, MPI_IO_PREFIX];
    let prefix = prefixes.into_iter().find(|prefix| target.starts_with(prefix)).unwrap_or("");
    let shown = format!("{prefix}{}", shown_place(&target[prefix.len()..]));
    match context.given_store().filter(|_| is_in_store(target)) {
        Some(store) => format!("{shown}{STORE_OPTION}{}", shown_url(store)),
        None => shown,
    }
}

fn shown_place(place: &str) -> String {
    if target::is_directory(place) {
        return absolute(place);
    }
    if let Some(url) = place.strip_prefix("store:") {
        return format!("store:{}", shown_url(url));
    }
    let Some(driver) = place.strip_prefix(DRIVER_PREFIX) else { return without_password(place) };
    let (paths, options) = driver.find('?').map_or((driver, ""), |at| driver.split_at(at));
    match paths.rsplit_once(':') {
        Some((library, directory)) => {
            format!("{DRIVER_PREFIX}{}:{}{options}", absolute(library), absolute(directory))
        }
        None => place.to_owned(),
    }
}

/// A URL of a store, or its path.
fn shown_url(url: &str) -> String {
    match url.contains("://") || url.starts_with("memory:") {
        true => without_password(url),
        false => absolute(url),
    }
}

/// The path without symbolic links above its last name, and without control characters, which rows do
/// not keep.
fn absolute(path: &str) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let path: PathBuf = path.components().collect();
    let real = match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name())
    {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    };
    real.to_string_lossy().replace(char::is_control, "?")
}

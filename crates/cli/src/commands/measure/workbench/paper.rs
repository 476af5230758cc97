// SPDX-License-Identifier: Apache-2.0
//! `esker workbench paper`: measures the tables and figures of MDWorkbench on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_base::store::url;
use esker_workbench::backend::{
    Backend, LibraryBackend, NullBackend, ObjectStoreBackend, PosixBackend,
};
use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::WorkingSetSize;
use esker_workbench::progress::RunProgress;
use esker_workbench::report::paper::{self, DATASETS, WAITING_FACTORS};
use esker_workbench::result::RunResult;
use esker_workbench::run;

use super::{check_content, default_ranks};
use crate::change::SessionSettings;
use crate::context::CommandContext;
use crate::interrupt::guarded;
use crate::output_file::OutputFile;
use crate::{progress, usage};

/// P and I of the paper.
const OBJECTS: u64 = 10_000;
const ITERATIONS: u64 = 2_000;

/// P of the runs that estimate how many objects the time allows.
const TRIAL_OBJECTS: u64 = 100;

/// Creates that take about as long as a whole run, for each object of the working set: precreate
/// and cleanup one each, a fifth of four calls at T=0, five times that at T=4.
const RUN_CREATES: f64 = 7.0;

/// Bytes of an object, as IO500 has it.
const OBJECT_BYTES: u64 = 3_901;

/// The library's store, in the memory of this process.
const LIBRARY_STORE: &str = "memory:paper-library";

/// Where tmpfs is on Linux.
const SHARED_MEMORY: &str = "/dev/shm";

/// Regenerate the tables and figures of the MDWorkbench paper on this machine
///
/// Measures a directory, tmpfs, Esker's library, a store and the null service, each with one dataset
/// a rank and with ten, and writes Tables 1 and 2 and Figures 4 and 5 with a sentence on what agrees
/// with the paper. The library and the store are in the memory of the process.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker workbench paper /scratch/bench --to paper.html --seconds 120")]
pub struct WorkbenchPaper {
    /// A new or empty directory of the file system to measure
    directory: PathBuf,
    /// The page
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// About how long to measure; less than the paper's 10000 objects are used where time is short
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    seconds: f64,
    /// N: ranks; as many as processors, at least 2, unless given
    #[arg(short = 'N', long, value_name = "N")]
    ranks: Option<u32>,
    /// Also write the results as a JSON array
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Opens a backend anew for each run.
type OpenBackend<'a> = Box<dyn Fn() -> Result<Box<dyn Backend>> + 'a>;

impl WorkbenchPaper {
    /// Measures all backends and writes the page.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        if !(1.0..=1e6).contains(&self.seconds) {
            usage::exit("--seconds is from 1 to 1000000");
        }
        let page = OutputFile::prepare(&self.to)?;
        let output = self.output.as_deref().map(OutputFile::prepare).transpose()?;
        let backends = self.backends(context);
        let seconds = self.seconds / (backends.len() * DATASETS.len()) as f64;
        let mut results = Vec::new();
        for (label, open) in &backends {
            for datasets in DATASETS {
                results.push(self.measure(label, open, datasets, seconds)?);
            }
        }
        if let Some(output) = output {
            output.write_bytes(&serde_json::to_vec(&results).expect("numbers and words"))?;
        }
        page.write_bytes(paper::page(&results).as_bytes())?;
        context.out.line(format!("wrote {}", self.to.display()))
    }

    fn backends<'a>(&'a self, context: &'a CommandContext) -> Vec<(&'static str, OpenBackend<'a>)> {
        let mut backends: Vec<(&'static str, OpenBackend<'a>)> =
            vec![("directory", Box::new(|| Ok(Box::new(PosixBackend::new(&self.directory)?))))];
        if Path::new(SHARED_MEMORY).is_dir() {
            let path = PathBuf::from(format!("{SHARED_MEMORY}/esker-paper-{}", std::process::id()));
            backends.push(("tmpfs", Box::new(move || Ok(Box::new(PosixBackend::new(&path)?)))));
        }
        backends.push((
            "library",
            Box::new(move || {
                let store = url::open(LIBRARY_STORE).or_else(|_| url::init(LIBRARY_STORE))?;
                let options = SessionSettings::for_few().options(context);
                let clock = Arc::new(SystemClock);
                Ok(Box::new(LibraryBackend::open(guarded(store), "workbench", options, clock)?))
            }),
        ));
        backends.push((
            "store",
            Box::new(|| {
                let store = guarded(url::connect("memory:paper-store")?);
                Ok(Box::new(ObjectStoreBackend::new(store)))
            }),
        ));
        backends.push(("null", Box::new(|| Ok(Box::new(NullBackend::default())))));
        backends
    }

    /// Measures one run of about `seconds`.
    fn measure(
        &self,
        label: &str,
        open: &OpenBackend<'_>,
        datasets: u32,
        seconds: f64,
    ) -> Result<RunResult> {
        // The paper keeps D · P and D · I.
        let sized = |objects: u64, iterations: u64| WorkingSetSize {
            ranks: self.ranks.unwrap_or_else(default_ranks),
            datasets,
            objects: (objects / u64::from(datasets)).max(1),
            iterations: (iterations / u64::from(datasets)).max(1),
            object_bytes: OBJECT_BYTES,
            rank_offset: 1,
        };
        let trial =
            self.run_once(open, &RunOptions::new(sized(TRIAL_OBJECTS, TRIAL_OBJECTS / 5)))?;
        let of_rank_ns: f64 = trial
            .phases
            .iter()
            .filter_map(|phase| phase.operation(Operation::Create))
            .map(|create| create.service.mean_ns())
            .fold(1.0, f64::max);
        let objects = (seconds * 1e9 / (of_rank_ns * RUN_CREATES)) as u64;
        let objects = objects.clamp(TRIAL_OBJECTS, OBJECTS);
        let options = RunOptions {
            label: label.to_owned(),
            waiting_factors: WAITING_FACTORS.to_vec(),
            stonewall_ns: Some((seconds * 0.4 * 1e9) as u64),
            ..RunOptions::new(sized(objects, objects * ITERATIONS / OBJECTS))
        };
        self.run_once(open, &options)
    }

    fn run_once(&self, open: &OpenBackend<'_>, options: &RunOptions) -> Result<RunResult> {
        usage::value_of(options.check());
        let backend = open()?;
        let counts = Arc::new(RunProgress::new(options.size.ranks));
        let measured = progress::watch_workbench(&counts, || {
            run::run_threads(&*backend, options, &SystemClock, &counts)
        });
        let result = measured.inspect_err(|_| drop(backend.finish(false)))?;
        check_content(&result)?;
        Ok(result)
    }
}

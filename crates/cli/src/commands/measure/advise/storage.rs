// SPDX-License-Identifier: Apache-2.0
//! `esker advise TRACE`: the better storage for the application of a trace.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use esker_advisor::advice::storage_advice::StorageAdvice;
use esker_advisor::advice::{advice_page, advice_text};
use esker_advisor::features::{STRIPE_BYTES_DEFAULT, StorageConfiguration, TraceFeatures};
use esker_advisor::model::advisor_model::{AdvisorModel, MODEL_BYTES_MAX, SystemModel};
use esker_advisor::observation::StorageDevice;
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::regressors::LETTERS;
use esker_advisor::trace::features;
use esker_base::{Error, Kind, Result};

use super::model::read_bounded;
use super::open_trace;
use crate::context::CommandContext;
use crate::output_file::{check_is_not_read, write_output};

/// Features are a few numbers.
const FEATURES_BYTES_MAX: usize = 1 << 20;

/// The beginning of every trace.
const TRACE_MAGIC: &[u8] = b"ARROW1";

/// Servers, metadata servers and clients of the paper's example; a model that did not measure them
/// gets the nearest that it did.
const EXAMPLE_CONFIGURATION: [(&str, f64); 4] = [("s", 4.0), ("m", 4.0), ("c", 8.0), ("d", 2.0)];

#[derive(Clone, Copy, ValueEnum)]
enum ServerDevice {
    /// Hard disks
    Hdd,
    /// Solid-state disks
    Ssd,
}

/// A trace and the storage for which advice is wanted.
#[derive(Args)]
pub struct AdviceArguments {
    /// A trace, or the features that `esker advise trace` or `import` wrote with --features
    #[arg(required = true)]
    trace: Option<PathBuf>,
    /// The model that `esker advise model` wrote; simulated storage without one
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Storage servers; by default as in the model's measurements, as the following
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    servers: Option<u32>,
    /// Metadata servers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    metadata_servers: Option<u32>,
    /// Nodes on which the application runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// Devices of the servers
    #[arg(long, value_enum, value_name = "DEVICE")]
    device: Option<ServerDevice>,
    /// Also write the advice as a page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl AdviceArguments {
    /// Advises.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let trace = self.trace.as_deref().expect("clap requires it without a subcommand");
        if let Some(report) = &self.report {
            check_is_not_read(report, [trace].into_iter().chain(self.model.as_deref()));
        }
        let found = features_of(trace)?;
        let model = match &self.model {
            Some(path) => {
                let bytes = read_bounded(path, MODEL_BYTES_MAX)?;
                AdvisorModel::from_json(&path.display().to_string(), &bytes)?
            }
            None => AdvisorModel::fit(&dataset(SEED))?,
        };
        let storage = self.storage(&model.systems[0]);
        let advice = StorageAdvice::of(&model, &found, &storage)
            .map_err(|error| error.within(trace.display()))?;
        let name = trace.display().to_string();
        if let Some(path) = &self.report {
            write_output(path, advice_page::page(&advice, &found, &name).as_bytes())?;
        }
        if context.out.is_json() {
            return context.out.report(&advice);
        }
        context.out.raw(advice_text::text(&advice, &found, &name).as_bytes())
    }

    /// The given configuration; what is not given is as in the measurements of `system`.
    fn storage(&self, system: &SystemModel) -> StorageConfiguration {
        let [servers, metadata_servers, clients, device] =
            EXAMPLE_CONFIGURATION.map(|(letter, example)| {
                let index = LETTERS.iter().position(|other| *other == letter);
                let [least, greatest] = system.ranges[index.expect("a letter of Table 1")];
                example.max(least).min(greatest)
            });
        // A count in a range of counts.
        let count = |given: Option<u32>, measured: f64| given.unwrap_or(measured as u32);
        StorageConfiguration {
            servers: count(self.servers, servers),
            metadata_servers: count(self.metadata_servers, metadata_servers),
            clients: count(self.clients, clients),
            device: match self.device {
                Some(ServerDevice::Hdd) => StorageDevice::Hdd,
                Some(ServerDevice::Ssd) => StorageDevice::Ssd,
                None if device < 1.5 => StorageDevice::Hdd,
                None => StorageDevice::Ssd,
            },
        }
    }
}

/// The features in a file, or those of the trace in it.
fn features_of(path: &Path) -> Result<TraceFeatures> {
    let mut begin = Vec::new();
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| Error::io(error, shown.clone()))?;
    file.take(TRACE_MAGIC.len() as u64)
        .read_to_end(&mut begin)
        .map_err(|error| Error::io(error, shown.clone()))?;
    if begin == TRACE_MAGIC {
        return features(&open_trace(path)?, STRIPE_BYTES_DEFAULT);
    }
    let bytes = read_bounded(path, FEATURES_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!(
            "{shown}: neither a trace nor features ({error}); make one with `esker advise trace` or `import`"
        );
        Error::new(Kind::Corrupt, message)
    })
}

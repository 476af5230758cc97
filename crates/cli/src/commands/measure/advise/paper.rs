// SPDX-License-Identifier: Apache-2.0
//! `esker advise paper`: the tables and figures of the paper beside those of a dataset.

use std::path::PathBuf;

use clap::Args;
use esker_advisor::observation::{StorageKind, mean_of_repetitions};
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::paper::{comparison, contradictions, figures, statistics_page, tables};
use esker_base::Result;
use serde_json::json;

use super::model::read_rows;
use crate::context::CommandContext;
use crate::output_file::{check_is_not_read, write_output};

/// Print the tables and figures of Kougkas et al. (2016) beside ours
///
/// Tables 2 to 5 are computed from measured rows or, without any, from simulated ones: the paper's
/// cluster, OrangeFS and HyperDex are imitated by service models. Each line says whether both agree.
/// At the end stands where the paper contradicts itself.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker advise paper
  esker advise paper --data rows.csv --report rows.html")]
pub struct AdvisePaper {
    /// Measured rows as CSV or Parquet; several files are joined
    #[arg(long, value_name = "ROWS")]
    data: Vec<PathBuf>,
    /// Also write a page of the regressions, with plots of their residuals
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl AdvisePaper {
    /// Prints the comparison.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        if let Some(report) = &self.report {
            check_is_not_read(report, self.data.iter().map(PathBuf::as_path));
        }
        let (rows, source) = match self.data.is_empty() {
            true => (dataset(SEED), "simulated dataset".to_owned()),
            false => {
                let names = self.data.iter().map(|path| path.display().to_string());
                (read_rows(&self.data)?, names.collect::<Vec<_>>().join(", "))
            }
        };
        let rows = mean_of_repetitions(&rows);
        let both = [
            tables::of_kind(&rows, StorageKind::FileSystem)?,
            tables::of_kind(&rows, StorageKind::KeyValue)?,
        ];
        if let Some(path) = &self.report {
            write_output(path, statistics_page::page(&both, &source).as_bytes())?;
        }
        if context.out.is_json() {
            let systems = both.iter().map(|table| {
                json!({
                    "systems": table.systems,
                    "is_simulated": table.is_simulated,
                    "means": table.means,
                    "groups": table.groups,
                    "correlations": table.correlations,
                    "coefficients": table.regression.fit.coefficients,
                    "adjusted_r_squared": table.regression.fit.adjusted_r_squared,
                    "excluded": table.regression.excluded,
                    "inflation": table.inflation,
                    "durbin_watson": table.durbin_watson,
                    "breusch_pagan": table.variance,
                })
            });
            return context.out.json(json!({
                "tables": systems.collect::<Vec<_>>(),
                "figures": figures::claims(),
                "contradictions": contradictions::contradictions(),
            }));
        }
        context.out.raw(comparison::text(&both, &source).as_bytes())
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker advise model`: fits models to measured rows, and keeps the best.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use esker_advisor::advice::advice_text::equal_rule_words;
use esker_advisor::model::advisor_model::AdvisorModel;
use esker_advisor::model::decision_score::CLEAR_DIFFERENCE;
use esker_advisor::observation::{CSV_BYTES_MAX, Observation, read_csv, read_parquet_rows};
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::parquet_table::{PARQUET_MAGIC, ParquetTable};
use esker_base::{Error, Kind, Result};
use serde_json::json;

use super::open;
use crate::context::CommandContext;
use crate::output_file::{check_is_not_read, write_output};
use crate::{interrupt, text, usage};

/// Fit models to measured rows, and keep the one that decides best
///
/// The rows are those of `esker advise measure`. Five methods are fitted: the linear regression of
/// Kougkas et al. (2016), one of logarithms with interactions, boosted trees, a random forest, and the
/// mean of the last three. Each predicts every family of workloads from the other families, and the one
/// whose choices lose least is kept.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker advise model rows.csv --to model.json
  esker advise model --simulated --to simulated.json")]
pub struct AdviseModel {
    /// Measured rows as CSV or Parquet; several files are joined
    #[arg(required_unless_present = "simulated", value_name = "ROWS")]
    rows: Vec<PathBuf>,
    /// Use simulated rows of the size of the paper's dataset, to try the command
    #[arg(long, conflicts_with = "rows")]
    simulated: bool,
    /// The model
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

impl AdviseModel {
    /// Fits and writes the model.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        check_is_not_read(&self.to, self.rows.iter().map(PathBuf::as_path));
        interrupt::advise("nothing was written".to_owned());
        let rows = if self.simulated { dataset(SEED) } else { read_rows(&self.rows)? };
        let model = AdvisorModel::fit(&rows)?;
        write_output(&self.to, model.to_json().as_bytes())?;
        interrupt::advise("the model is written".to_owned());
        if context.out.is_json() {
            return context.out.json(json!({
                "method": model.method,
                "rows": rows.len(),
                "families": model.families,
                "is_simulated": model.is_simulated,
                "evaluations": model.evaluations,
                "equal_rule": model.equal_rule(),
            }));
        }
        context.out.line(format!(
            "{}, {} of workloads, each predicted from the others{}",
            text::counted(rows.len() as u64, "row"),
            text::counted(model.families.len() as u64, "family"),
            if model.is_simulated { ", SIMULATED" } else { "" }
        ))?;
        let clear = format!("right of clear (> {:.0} %)", CLEAR_DIFFERENCE * 100.0);
        context.out.line(format!("{:<40}{:>12}{clear:>26}{:>14}", "", "error", "mean regret"))?;
        for evaluation in &model.evaluations {
            let error = evaluation.error_factor.map_or("-".into(), |error| format!("x {error:.2}"));
            let score = evaluation.score;
            let percent = score.accuracy() * 100.0;
            let right = format!("{} of {} ({percent:.1} %)", score.right, score.clear_cases);
            let regret = format!("{:.2} %", score.mean_regret * 100.0);
            let name = &evaluation.name;
            context.out.line(format!("{name:<40}{error:>12}{right:>26}{regret:>14}"))?;
        }
        context.out.line(format!("{}: {}", self.to.display(), model.method.words()))?;
        match model.equal_rule() {
            Some(rule) => context.out.line(equal_rule_words(rule)),
            None => Ok(()),
        }
    }
}

/// The rows of all files, at least one.
pub(super) fn read_rows(paths: &[PathBuf]) -> Result<Vec<Observation>> {
    let mut rows = Vec::new();
    for path in paths {
        rows.extend(read_file(path)?);
    }
    if rows.is_empty() {
        usage::exit("there is no row; `esker advise measure` writes some");
    }
    Ok(rows)
}

/// The rows of a file of CSV or Parquet.
pub(super) fn read_file(path: &Path) -> Result<Vec<Observation>> {
    let object = path.display().to_string();
    let (file, mut start) = (open(path)?, [0; PARQUET_MAGIC.len()]);
    // A pipe has no positions, and so no Parquet.
    if file.read_exact_at(&mut start, 0).is_ok() && start == PARQUET_MAGIC {
        return read_parquet_rows(&ParquetTable::open(file, &object)?, &object);
    }
    read_csv(&object, &read_bounded(path, CSV_BYTES_MAX)?)
}

/// The content of a file of at most `bytes_max` bytes.
pub(super) fn read_bounded(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let mut bytes = Vec::new();
    open(path)?
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(error, shown.clone()))?;
    if bytes.len() > bytes_max {
        return Err(Error::new(Kind::TooLarge, format!("{shown}: larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

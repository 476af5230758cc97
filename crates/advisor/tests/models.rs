// SPDX-License-Identifier: Apache-2.0
//! Models: cross-validation by workload, decisions, intervals, files.

use std::collections::HashMap;
use std::fs::File;
use std::sync::OnceLock;

use esker_advisor::model::advisor_model::{AdvisorModel, SystemModel, probability_faster};
use esker_advisor::model::cross_validation::{always, validate};
use esker_advisor::model::decision_score::DecisionScore;
use esker_advisor::model::rate_predictor::{PredictionMethod, RatePredictor};
use esker_advisor::observation::{
    EmulatedVariables, Observation, StorageKind, mean_of_repetitions, read_parquet_rows,
};
use esker_advisor::paper::figures::base_variables;
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::parquet_table::ParquetTable;
use esker_base::Kind;

/// Fitted once, since validation fits every method a dozen times.
fn simulated_model() -> &'static AdvisorModel {
    static MODEL: OnceLock<AdvisorModel> = OnceLock::new();
    MODEL.get_or_init(|| AdvisorModel::fit(&dataset(SEED)).expect("a model"))
}

/// Checks the bar of the advisor on families of workloads that it has not seen, with the paper's rules
/// beside it.
fn check_decisions(model: &AdvisorModel, rows: &[Observation]) {
    for evaluation in &model.evaluations {
        eprintln!(
            "{}: factor {:?}, accuracy {:.3} of {}, regret {:.4}",
            evaluation.name,
            evaluation.error_factor,
            evaluation.score.accuracy(),
            evaluation.score.clear_cases,
            evaluation.score.mean_regret
        );
    }
    assert!(model.families.len() >= 12, "{:?}", model.families);
    let score = |name: &str| {
        let found = model.evaluations.iter().find(|evaluation| evaluation.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).score
    };
    let chosen = score(model.method.words());
    assert!(chosen.accuracy() >= 0.9, "{chosen:?}");
    assert!(chosen.mean_regret <= 0.05, "{chosen:?}");
    for SystemModel { system, .. } in &model.systems {
        let fixed = score(&format!("always {system}"));
        assert!(fixed.mean_regret > 2.0 * chosen.mean_regret, "{system}: {fixed:?}");
        // The model sorts its rows, so its sum has another order.
        let expected = always(system, rows);
        assert!((fixed.mean_regret - expected.mean_regret).abs() < 1e-12, "{expected:?}");
        assert_eq!(DecisionScore { mean_regret: expected.mean_regret, ..fixed }, expected);
    }
    assert_eq!(model.equal_rule(), None);
    let linear = score(PredictionMethod::Linear.words());
    assert!(chosen.mean_regret <= linear.mean_regret, "{linear:?}");
}

#[test]
fn decisions_on_simulated_families_left_out_are_right() {
    let model = simulated_model();
    assert!(model.is_simulated);
    check_decisions(model, &dataset(SEED));
}

/// Symptom: the same rows in another order, such as of another seed of a measurement, gave another
/// model, since random samples were drawn by the numbers of rows.
#[test]
fn the_order_of_rows_does_not_matter() {
    let mut rows = dataset(SEED);
    rows.truncate(200);
    let model = AdvisorModel::fit(&rows).expect("a model");
    rows.reverse();
    rows.swap(3, 77);
    assert_eq!(AdvisorModel::fit(&rows).expect("a model"), model);
}

/// Symptom: rows of two storages under one name were averaged.
#[test]
fn rows_of_one_system_are_of_one_target() {
    let mut rows = dataset(SEED);
    rows[0].target = "/a".to_owned();
    let row = Observation { target: "/b".to_owned(), ..rows[0].clone() };
    rows.push(row);
    let error = AdvisorModel::fit(&rows).expect_err("two storages");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.context().contains("are of /a and of /b"), "{error}");
}

/// Symptom: a model that decided worse than always taking the file system gave firm advice.
#[test]
fn a_model_that_is_no_better_than_a_rule_says_so() {
    let mut rows = dataset(SEED);
    let files = rows.iter().filter(|row| row.kind == StorageKind::FileSystem);
    let times: HashMap<String, f64> =
        files.map(|row| (row.case.clone(), row.microseconds)).collect();
    for row in rows.iter_mut().filter(|row| row.kind == StorageKind::KeyValue) {
        row.microseconds = times[&row.case] / 2.0;
    }
    let model = AdvisorModel::fit(&rows).expect("a model");
    assert_eq!(model.equal_rule(), Some("always simulated-hyperdex"));
}

/// The rows of twelve families in a file and in LevelDB, as they are and behind emulated servers and
/// devices, were measured by the commands in the guide.
#[test]
fn decisions_on_measured_families_left_out_are_right() {
    for (name, count) in [("emulated.parquet", 4_320), ("measured.parquet", 480)] {
        let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
        let table = ParquetTable::open(File::open(&path).expect("open"), &path).expect("a table");
        let rows = read_parquet_rows(&table, &path).expect("rows");
        assert_eq!(rows.len(), count);
        let emulated = EmulatedVariables::storage(name == "emulated.parquet");
        assert!(rows.iter().all(|row| row.emulated == emulated));
        let model = AdvisorModel::fit(&rows).expect("a model");
        check_decisions(&model, &mean_of_repetitions(&rows));
    }
}

#[test]
fn intervals_hold_the_share_of_runs_that_they_claim() {
    let model = simulated_model();
    // Other rows of the same systems; the seed is another one.
    for system in &model.systems {
        let (mut inside, mut all) = (0.0, 0.0);
        for row in dataset(SEED + 1).iter().filter(|row| row.system == system.system) {
            let predicted = system.predict(&row.variables);
            assert!(predicted.lower <= predicted.rate && predicted.rate <= predicted.upper * 1.5);
            let rate = row.bandwidth();
            inside += f64::from(u8::from(predicted.lower <= rate && rate <= predicted.upper));
            all += 1.0;
        }
        // Families that the model has seen are predicted better than those left out.
        assert!(inside / all >= 0.88, "{}: {}", system.system, inside / all);
    }
}

#[test]
fn a_system_is_as_likely_faster_as_slower_than_itself() {
    let model = simulated_model();
    let run = base_variables();
    let [objects, files] = &model.systems[..] else { panic!("two systems") };
    assert!((probability_faster(files, files, &run) - 0.5).abs() < 1e-12);
    let [first, second] =
        [probability_faster(files, objects, &run), probability_faster(objects, files, &run)];
    assert!((first + second - 1.0).abs() < 1e-12);
    let mut scattered = run.clone();
    scattered.metadata_operations = 3 * scattered.requests();
    assert!(probability_faster(files, objects, &scattered) < first);
    assert_eq!(files.extrapolated(&run), Vec::<&str>::new());
    scattered.processes = 1_000_000;
    assert_eq!(files.extrapolated(&scattered), ["p"]);
}

#[test]
fn predictions_are_positive_and_bounded_wherever_they_are_made() {
    let rows = dataset(SEED);
    let files: Vec<&Observation> =
        rows.iter().filter(|row| row.kind == StorageKind::FileSystem).collect();
    let highest = files.iter().map(|row| row.bandwidth()).fold(0.0, f64::max);
    let mut far = base_variables();
    far.processes = u32::MAX;
    far.gap_bytes = u64::MAX;
    far.metadata_operations = u64::MAX;
    far.request_bytes = 1;
    for method in PredictionMethod::ALL {
        let predictor = RatePredictor::fit(method, &files).expect("a predictor");
        for variables in [&far, &base_variables()] {
            let rate = predictor.predict(variables);
            assert!(rate > 0.0 && rate <= 2.0 * highest, "{method:?}: {rate}");
        }
        predictor.validate().expect("a fit is valid");
    }
}

#[test]
fn a_model_survives_its_file_and_damaged_files_are_refused() {
    let model = simulated_model();
    let text = model.to_json();
    let read = AdvisorModel::from_json("m.json", text.as_bytes()).expect("a model");
    assert!(read == *model, "a model changes in its file");
    let step = (text.len() / 200).max(1);
    for end in (0..text.len() - 1).step_by(step) {
        let error = AdvisorModel::from_json("m.json", &text.as_bytes()[..end]).expect_err("cut");
        assert_eq!(error.kind(), Kind::Corrupt, "at {end}");
    }
    let older = text.replacen("\"version\":2", "\"version\":1", 1);
    AdvisorModel::from_json("m.json", older.as_bytes())
        .expect("the version before has fewer methods");
    let newer = text.replacen("\"version\":2", "\"version\":3", 1);
    let error = AdvisorModel::from_json("m.json", newer.as_bytes()).expect_err("newer");
    assert_eq!(error.kind(), Kind::Invalid);
    let damaged = [
        text.replacen("esker-advisor-model", "other", 1),
        text.replacen("\"error_quantiles\":[", "\"error_quantiles\":[1e9,", 1),
        text.replacen("\"measured\":[", "\"measured\":[-1,", 1),
        text.replacen("\"measured\":[", "\"measured\":[1e300,", 1),
    ];
    for text in damaged {
        let error = AdvisorModel::from_json("m.json", text.as_bytes()).expect_err("damaged");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
}

#[test]
fn too_few_families_or_rows_are_named() {
    let mut rows = dataset(SEED);
    rows.retain(|row| row.workload.starts_with("hpio"));
    let error = AdvisorModel::fit(&rows).expect_err("two families");
    assert!(error.to_string().contains("families of workloads: 2;"), "{error}");
    assert!(validate(PredictionMethod::Linear, &[]).is_err());
}

/// Symptom: a model with finite numbers predicted infinite rates, or none at all.
#[test]
fn numbers_that_overflow_are_refused() {
    let model: serde_json::Value =
        serde_json::from_str(&simulated_model().to_json()).expect("JSON");
    for (path, value) in [
        ("/systems/0/error_quantiles/40", 1e300),
        ("/systems/0/predictor/measured/0", 1e-300),
        ("/systems/0/predictor/measured/1", 1e300),
    ] {
        let mut changed = model.clone();
        *changed.pointer_mut(path).expect("a number") = value.into();
        let bytes = changed.to_string();
        let error = AdvisorModel::from_json("model.json", bytes.as_bytes()).expect_err(path);
        assert_eq!(error.kind(), Kind::Corrupt, "{path}: {error}");
    }
}

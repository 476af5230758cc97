// SPDX-License-Identifier: Apache-2.0
//! The paper's printed model, the simulated dataset, and the comparison of both.

use esker_advisor::observation::{StorageDevice, StorageKind};
use esker_advisor::paper::comparison;
use esker_advisor::paper::figures::{PaperAgreement, base_variables, claims};
use esker_advisor::paper::printed_model::{app2, predict};
use esker_advisor::paper::published::{HYPERDEX, SYSTEMS};
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::paper::tables::of_kind;
use esker_base::Kind;

#[test]
fn the_printed_model_predicts_app2_as_computed_by_hand() {
    let expected = [
        (StorageDevice::Hdd, 4, 310.4),
        (StorageDevice::Hdd, 128, 383.9),
        (StorageDevice::Ssd, 4, 381.2),
        (StorageDevice::Ssd, 128, 454.6),
    ];
    for (device, processes, rate) in expected {
        let predicted = predict(&HYPERDEX, &app2(processes, device, &base_variables()));
        assert!((predicted - rate).abs() < 0.06, "{device:?} {processes}: {predicted}");
    }
}

#[test]
fn printed_tables_have_every_regressor_once() {
    for system in SYSTEMS {
        let kept = system.coefficients.iter().map(|coefficient| coefficient.letter);
        let mut all: Vec<&str> = kept.chain(system.excluded.iter().copied()).collect();
        all.sort_unstable();
        let mut letters: Vec<&str> = esker_advisor::regressors::LETTERS.to_vec();
        letters.push("");
        letters.sort_unstable();
        assert_eq!(all, letters, "{}", system.name);
    }
}

/// The simulated systems behave as the paper says where it says it: no number has the other sign,
/// and the orders that the argument needs hold.
#[test]
fn the_shapes_of_the_figures_are_reproduced() {
    let claims = claims();
    assert!(claims.len() >= 30);
    for claim in &claims {
        assert_ne!(claim.agreement, PaperAgreement::Differs, "{claim:?}");
    }
    let agree = claims.iter().filter(|claim| claim.agreement == PaperAgreement::Agrees).count();
    assert!(agree * 2 > claims.len(), "only {agree} of {} agree", claims.len());
}

/// The argument of §5.2: the variables that matter differ between the systems.
#[test]
fn the_simulated_dataset_shows_which_system_is_sensitive_to_what() {
    let rows = dataset(SEED);
    let files = of_kind(&rows, StorageKind::FileSystem).expect("tables");
    let objects = of_kind(&rows, StorageKind::KeyValue).expect("tables");
    let correlation = |tables: &esker_advisor::paper::tables::DatasetTables, letter: &str| {
        let found = tables.correlations.iter().find(|(of, _)| *of == letter);
        found.expect("the variable varies").1
    };
    // Signs of Table 4 that are significant there.
    for (letter, sign) in [("c", 1.0), ("d", 1.0), ("g", -1.0), ("M", -1.0)] {
        let found = correlation(&files, letter);
        assert!(found.r * sign > 0.0 && found.p < 0.05, "file system, {letter}: {found:?}");
    }
    for letter in ["s", "c", "p", "d"] {
        let found = correlation(&objects, letter);
        assert!(found.r > 0.0 && found.p < 0.05, "key-value store, {letter}: {found:?}");
    }
    // And those that are not: neither the pattern nor gaps matter to the key-value store.
    for letter in ["a", "g"] {
        assert!(correlation(&objects, letter).p > 0.05, "key-value store, {letter}");
    }
    // Table 5: metadata servers matter where files are opened, and not to the key-value store.
    let fit = &files.regression.fit;
    assert!(fit.coefficient("m").is_some_and(|m| m.value > 0.0), "{:?}", fit.coefficients);
    for letter in ["m", "a", "g", "M"] {
        assert!(objects.regression.excluded.iter().any(|other| other == letter), "{letter}");
    }
    let ratio = |groups: &[esker_advisor::statistics::group_means::GroupMean]| {
        groups[1].mean / groups[0].mean
    };
    let device = |tables: &esker_advisor::paper::tables::DatasetTables| ratio(&tables.groups[1].1);
    assert!(device(&files) > 1.3 * device(&objects), "disks matter more to the file system");
}

#[test]
fn the_comparison_prints_every_table_and_marks_what_is_simulated() {
    let rows = dataset(SEED);
    let tables = [
        of_kind(&rows, StorageKind::FileSystem).expect("tables"),
        of_kind(&rows, StorageKind::KeyValue).expect("tables"),
    ];
    let text = comparison::text(&tables, "the simulated dataset");
    for part in [
        "Table 2, OrangeFS, SIMULATED",
        "Table 3, HyperDex, SIMULATED",
        "Table 4, OrangeFS",
        "Table 5, HyperDex",
        "Figure 15, App2",
        "contradicts itself",
        "310.45",
        "454.64",
        "92.76",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    if let Ok(path) = std::env::var("ESKER_SHOW_COMPARISON") {
        std::fs::write(path, text).expect("a file");
    }
}

#[test]
fn a_dataset_without_a_category_is_refused() {
    let mut rows = dataset(SEED);
    rows.retain(|row| row.kind == StorageKind::FileSystem);
    let error = of_kind(&rows, StorageKind::KeyValue).expect_err("no rows");
    assert_eq!(error.kind(), Kind::NotFound);
    let error = of_kind(&rows[..2], StorageKind::FileSystem);
    assert!(error.is_ok_and(|tables| tables.regression.selected.is_empty()), "too few to select");
    assert!(of_kind(&rows[..1], StorageKind::FileSystem).is_err());
}

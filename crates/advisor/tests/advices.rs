// SPDX-License-Identifier: Apache-2.0
//! Advice on applications whose best storage is known.

use std::sync::OnceLock;

use esker_advisor::advice::application_change::ApplicationChange;
use esker_advisor::advice::storage_advice::{StorageAdvice, StorageVerdict};
use esker_advisor::advice::{advice_page, advice_text};
use esker_advisor::features::{STRIPE_BYTES_DEFAULT, StorageConfiguration, TraceFeatures};
use esker_advisor::model::advisor_model::AdvisorModel;
use esker_advisor::observation::{
    EmulatedVariables, IoVariables, Observation, StorageDevice, StorageKind, TransferKind,
};
use esker_advisor::paper::simulated_dataset::{FILE_SYSTEM, KEY_VALUE_STORE, SEED, dataset};
use esker_advisor::paper::simulated_systems::microseconds;
use esker_advisor::pattern::write_pattern;
use esker_advisor::trace::{TraceReader, features as trace_features};
use esker_base::Kind;

fn simulated_model() -> &'static AdvisorModel {
    static MODEL: OnceLock<AdvisorModel> = OnceLock::new();
    MODEL.get_or_init(|| AdvisorModel::fit(&dataset(SEED)).expect("a model"))
}

fn storage(device: StorageDevice) -> StorageConfiguration {
    StorageConfiguration { servers: 4, metadata_servers: 4, clients: 8, device }
}

/// 32 processes that read 64 MiB each from one file, in aligned requests of 64 KiB.
fn ordered() -> TraceFeatures {
    TraceFeatures {
        processes: 32,
        reads: 32 * 1024,
        read_bytes: (32 * 64) << 20,
        request_bytes_median: 64 << 10,
        stripe_bytes: 64 << 10,
        contiguous_requests: 32 * 1023,
        following_requests: 32 * 1023,
        opens: 32,
        closes: 32,
        files: 1,
        shared_files: 1,
        ..TraceFeatures::default()
    }
}

/// The same bytes from a small file for each request.
fn scattered() -> TraceFeatures {
    TraceFeatures {
        contiguous_requests: 0,
        following_requests: 0,
        opens: 32 * 1024,
        closes: 32 * 1024,
        creates: 32 * 1024,
        files: 32 * 1024,
        shared_files: 0,
        files_in_directory_max: 32 * 1024,
        ..ordered()
    }
}

fn advise(features: &TraceFeatures, device: StorageDevice) -> StorageAdvice {
    StorageAdvice::of(simulated_model(), features, &storage(device)).expect("advice")
}

#[test]
fn small_files_on_disks_belong_into_a_key_value_store() {
    let features = scattered();
    let advice = advise(&features, StorageDevice::Hdd);
    let StorageVerdict::Better { system, factor } = &advice.verdict else {
        panic!("{:?}", advice.verdict)
    };
    assert_eq!(system, KEY_VALUE_STORE);
    assert!(*factor > 3.0 && advice.probability > 0.95, "{advice:?}");
    let opens = advice.reasons.iter().find(|reason| reason.property == "opens, closes and creates");
    assert!(opens.is_some_and(|opens| opens.factor > 1.5), "{:?}", advice.reasons);
    let text = advice_text::text(&advice, &features, "scattered.arrow");
    assert!(text.starts_with("Use simulated-hyperdex: "), "{text}");
    assert!(text.contains("SIMULATED"), "{text}");
    assert!(text.lines().count() <= 24, "{} lines:\n{text}", text.lines().count());
}

/// The advised system is the one that the simulation itself makes faster.
#[test]
fn verdicts_agree_with_the_simulated_truth() {
    for device in [StorageDevice::Hdd, StorageDevice::Ssd] {
        for features in [ordered(), scattered()] {
            let advice = advise(&features, device);
            let StorageVerdict::Better { system, .. } = &advice.verdict else { continue };
            let files = microseconds(StorageKind::FileSystem, &advice.variables);
            let objects = microseconds(StorageKind::KeyValue, &advice.variables);
            let truth = if files < objects { FILE_SYSTEM } else { KEY_VALUE_STORE };
            assert_eq!(system, truth, "{device:?}: {:?}", advice.variables);
        }
    }
    let fast = advise(&ordered(), StorageDevice::Ssd);
    assert_eq!(fast.rates[0].system, FILE_SYSTEM, "aligned requests on solid-state disks");
}

#[test]
fn the_change_that_gains_most_for_a_file_system_is_not_to_open_a_file_each_time() {
    // Only the file system, twice under other names: there is no key-value store to choose.
    let mut rows: Vec<Observation> = dataset(SEED);
    rows.retain(|row| row.kind == StorageKind::FileSystem);
    let mut twin = rows.clone();
    twin.iter_mut().for_each(|row| row.system = "twin".into());
    rows.extend(twin);
    let model = AdvisorModel::fit(&rows).expect("a model");
    let advice = StorageAdvice::of(&model, &scattered(), &storage(StorageDevice::Hdd));
    let advice = advice.expect("advice");
    assert_eq!(advice.verdict, StorageVerdict::NoDifferenceSeen);
    assert!((advice.probability - 0.5).abs() < 0.01, "{}", advice.probability);
    let text = advice_text::text(&advice, &scattered(), "a");
    assert!(text.starts_with("No difference seen between"), "{text}");
    let changes: Vec<ApplicationChange> =
        advice.changes.iter().map(|change| change.change).collect();
    let files = [ApplicationChange::FewerFiles, ApplicationChange::SharedFile];
    assert!(files.iter().all(|change| changes.contains(change)), "{changes:?}");
    assert!(!changes.contains(&ApplicationChange::IndexedDirectory), "no key-value store");
    assert!(advice.changes.is_sorted_by(|left, right| left.factor >= right.factor));
    let shared = advice.changes.iter().find(|change| change.change == files[1]);
    let shared = shared.expect("it is among them");
    assert!(shared.factor > 1.2, "{shared:?}");
    let command =
        "esker advise synth ior-segmented -p 32 -R 67108864 -r 65536 -o changed.arrow && ";
    assert!(shared.command.starts_with(command), "{}", shared.command);
}

/// Symptom: commands that try a change always read, even if the application writes, transferred
/// other numbers of bytes, and interleaved the contiguous requests of the ranks. Fix: the trace
/// that the command makes has the variables of the changed application.
#[test]
fn commands_do_the_changed_io() {
    let odd = TraceFeatures {
        processes: 3,
        reads: 20,
        writes: 10,
        read_bytes: 3 * 2_000_000,
        written_bytes: 3 * 1_000_001,
        request_bytes_median: 100_000,
        unaligned_requests: 30,
        unaligned_bytes_median: 1_000,
        following_requests: 27,
        contiguous_requests: 3,
        gap_bytes_mean: 5_000,
        files: 8,
        opens: 30,
        closes: 30,
        ..ordered()
    };
    let ordered = TraceFeatures { contiguous_requests: 27, shared_files: 0, ..odd.clone() };
    let (reads, read_bytes, writes, written_bytes) = (0, 0, 30, 3 * 3_000_001);
    let only_writes = TraceFeatures { reads, read_bytes, writes, written_bytes, ..ordered.clone() };
    let storage = storage(StorageDevice::Ssd);
    let mut tried = std::collections::BTreeSet::new();
    for before in [odd, ordered, only_writes] {
        let before = TraceFeatures { shared_files: 0, ..before };
        let run = before.variables(&storage).expect("variables");
        for change in ApplicationChange::ALL {
            let Some(changed) = change.apply(&before, &run) else { continue };
            let Some((pattern, size)) = change.pattern(&before, &changed) else { continue };
            tried.insert(change);
            let (trace, _) = write_pattern(pattern, &size, Vec::new()).expect("a trace");
            let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
            let found = trace_features(&reader, STRIPE_BYTES_DEFAULT).expect("features");
            let made = found.variables(&storage).expect("variables");
            let expected = IoVariables {
                metadata_operations: made.metadata_operations,
                unaligned_bytes: made.unaligned_bytes,
                ..changed.clone()
            };
            assert_eq!(made, expected, "{change:?}");
            assert!(changed.unaligned_bytes > 0 || found.is_aligned(), "{change:?}: {found:?}");
            assert_eq!(found.reads == 0, before.reads == 0, "{change:?}");
            assert_eq!(found.writes == 0, before.writes == 0, "{change:?}");
            let files = if change == ApplicationChange::FewerFiles { 3 } else { 1 };
            assert_eq!(found.files, files, "{change:?}");
        }
    }
    assert_eq!(tried.len(), 5, "all but the indexed directory: {tried:?}");
}

#[test]
fn an_application_that_has_a_property_is_not_advised_to_get_it() {
    let features = ordered();
    let advice = advise(&features, StorageDevice::Ssd);
    for change in [
        ApplicationChange::Align,
        ApplicationChange::MakeContiguous,
        ApplicationChange::FewerFiles,
        ApplicationChange::SharedFile,
        ApplicationChange::IndexedDirectory,
    ] {
        assert_eq!(change.apply(&features, &advice.variables), None, "{change:?}");
    }
}

#[test]
fn runs_beyond_the_measurements_are_marked() {
    let features = TraceFeatures { processes: 4096, ..ordered() };
    let advice = advise(&features, StorageDevice::Ssd);
    assert!(advice.rates.iter().all(|rate| rate.extrapolated.contains(&"p")), "{advice:?}");
    assert!(advice_text::text(&advice, &features, "a").contains("not measured: p"));
    let verdict = advice_text::verdict(&advice);
    assert!(verdict.ends_with("beyond the measured values of M, R, p"), "{verdict}");
}

#[test]
fn the_page_has_the_answer_and_escapes_names() {
    let features = scattered();
    let advice = advise(&features, StorageDevice::Hdd);
    let page = advice_page::page(&advice, &features, "<script>.arrow");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("Use simulated-hyperdex") && page.contains("simulated storage"));
    assert!(page.contains("&lt;script&gt;.arrow") && !page.contains("<script>"), "{page}");
}

#[test]
fn features_without_bytes_or_with_contradictions_are_refused() {
    let model = simulated_model();
    let refuse = |features: TraceFeatures| {
        let storage = storage(StorageDevice::Ssd);
        let error = StorageAdvice::of(model, &features, &storage).expect_err("no advice");
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    };
    refuse(TraceFeatures::default());
    refuse(TraceFeatures { reads: 1, read_bytes: 0, processes: 1, ..TraceFeatures::default() });
    refuse(TraceFeatures { small_requests: u64::MAX, ..ordered() });
}

/// Symptom: models of rows that all read, on one server, gave firm advice for writes and for a hundred
/// servers, and the command that tries a change used a directory of its own.
#[test]
fn advice_says_what_was_never_measured() {
    let mut rows = dataset(SEED);
    for row in &mut rows {
        row.variables.servers = 4;
        row.emulated = EmulatedVariables::default();
        row.transfers = Some(TransferKind::Read);
        row.target = format!("/scratch/{}; ls", row.system);
    }
    // Twins in the place of a key-value store, which makes every change look small.
    rows.retain(|row| row.kind == StorageKind::FileSystem);
    let mut twins = rows.clone();
    twins.iter_mut().for_each(|row| row.system = "twin".into());
    rows.extend(twins);
    let model = AdvisorModel::fit(&rows).expect("a model");
    let model = AdvisorModel::from_json("model", model.to_json().as_bytes()).expect("a model");
    let advise = |features: &TraceFeatures, servers| {
        let storage = StorageConfiguration { servers, ..storage(StorageDevice::Hdd) };
        let advice = StorageAdvice::of(&model, features, &storage).expect("advice");
        let text = advice_text::text(&advice, features, "a");
        let page = advice_page::page(&advice, features, "a");
        (advice, text, page)
    };
    let reads = scattered();
    let (advice, text, page) = advise(&reads, 4);
    assert_eq!(advice.unmeasured_transfers, None);
    let caution = "CAUTION: the application mostly";
    assert!(!text.contains(caution) && !text.contains("had the same"), "{text}");
    assert!(!page.contains(caution));
    let change = advice.changes.iter().find(|change| change.command.contains("replay"));
    let change = change.expect("a change that is tried in files");
    let target = format!("'/scratch/{FILE_SYSTEM}; ls'");
    assert!(change.command.ends_with(&format!("replay changed.arrow {target}")), "{change:?}");

    let writes = TraceFeatures {
        reads: 0,
        writes: reads.reads,
        read_bytes: 0,
        written_bytes: reads.read_bytes,
        ..reads
    };
    let (advice, text, page) = advise(&writes, 100);
    assert_eq!(advice.unmeasured_transfers, Some(TransferKind::Write));
    for shown in [&text, &page] {
        assert!(shown.contains("CAUTION: the application mostly writes"), "{shown}");
        assert!(shown.contains("of which all runs had the same s"), "{shown}");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Pages in a real browser, at the widths of a phone, a tablet and a desk, and in print.
//!
//! Skipped where there is no Chromium; `CHROMIUM` names one.

use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::report::{page, paper};
use esker_workbench::result::RunResult;

use crate::page_layout::{PICTURE_BYTES_MIN, WIDTHS, browser, check_layout, measure, show};
use crate::reports::pair;
use crate::simulated_service::{options, simulate};

/// Runs of the paper: two backends, with one dataset a rank and with ten.
fn paper_results() -> Vec<RunResult> {
    let run = |label: &str, datasets, behaviour| {
        let mut run = RunOptions {
            label: label.to_owned(),
            waiting_factors: paper::WAITING_FACTORS.to_vec(),
            ..options(1_000 / u64::from(datasets))
        };
        run.size.datasets = datasets;
        simulate(&run, behaviour)
    };
    let slow = |call| (100_000 + call * call % 70_000, true);
    let fast = |call| (if call % 100 == 0 { 9_000_000 } else { 700 + call % 50 }, true);
    let runs = |datasets| [run("directory", datasets, slow), run("library", datasets, fast)];
    paper::DATASETS.into_iter().flat_map(runs).collect()
}

/// Two plots for each operation whose calls suffice, one timeline for each operation and phase, one
/// heat map for each phase, and the saturation of each run.
fn plots_of(results: &[RunResult]) -> u64 {
    let mut plots = 0;
    for operation in Operation::ALL {
        let has = |result: &RunResult| {
            let mut phases = result.phases.iter().filter_map(|phase| phase.operation(operation));
            phases.any(|found| found.latency().count >= 100)
        };
        plots += 2 * u64::from(results.iter().any(has));
    }
    for result in results {
        for group in result.groups() {
            let timelines = group[0].operations.iter().filter(|found| found.points.len() >= 10);
            plots += timelines.count() as u64 + 1;
        }
    }
    plots + results.len() as u64
}

#[test]
fn a_browser_shows_every_plot_and_no_text_on_another() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no Chromium; CHROMIUM names one");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let results = pair();
    let html = page(&results);
    let paper = paper::page(&paper_results());
    for width in WIDTHS {
        let found = measure(&browser, at, &html, width);
        check_layout("report", &found, width, plots_of(&results));
        // Figure 4 for each backend, and Figures 5a to 5d.
        let found = measure(&browser, at, &paper, width);
        check_layout("paper", &found, width, 2 + 2 * 4);
    }
    std::fs::write(at.join("report.html"), &html).expect("written");
    for width in WIDTHS {
        let picture = at.join(format!("{width}.png"));
        let option = format!("--screenshot={}", picture.display());
        let (_, logged) = show(&browser, at, "report.html", width, &option);
        assert!(!logged.contains("CONSOLE"), "the page logs nothing: {logged}");
        let bytes = std::fs::read(&picture).expect("a picture");
        assert!(
            bytes.starts_with(b"\x89PNG") && bytes.len() > PICTURE_BYTES_MIN,
            "{}",
            bytes.len()
        );
        assert_eq!(bytes[16..20], width.to_be_bytes(), "the picture's width");
    }
    let print = at.join("report.pdf");
    show(&browser, at, "report.html", WIDTHS[1], &format!("--print-to-pdf={}", print.display()));
    let bytes = std::fs::read(&print).expect("a print");
    assert!(bytes.starts_with(b"%PDF") && bytes.len() > PICTURE_BYTES_MIN, "{}", bytes.len());
}

/// The measurement itself notices a plot that is empty, texts that overlap and a page too wide.
#[test]
fn a_broken_page_is_noticed() {
    let Some(browser) = browser() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let broken = "<!DOCTYPE html><html><body><div style=\"width:700px\">wide</div><figure>\
                  <figcaption>a plot</figcaption><svg viewBox=\"0 0 420 250\" width=\"360\">\
                  <text x=\"50\" y=\"50\">one</text><text x=\"55\" y=\"52\">two</text>\
                  <text x=\"410\" y=\"100\">outside</text></svg></figure></body></html>";
    let found = measure(&browser, directory.path(), broken, WIDTHS[0]);
    for (list, shown) in [("empty", "a plot"), ("overlapping", "one, two"), ("outside", "outside")]
    {
        assert!(found[list][0].as_str().is_some_and(|text| text.contains(shown)), "{found}");
    }
    assert!(found["excess"].as_f64().is_some_and(|pixels| pixels > 0.0), "{found}");
}

// SPDX-License-Identifier: Apache-2.0
//! Pages in a real browser, at the widths of a phone, a tablet and a desk, and in print.
//!
//! A script that the test adds measures the page as the browser lays it out: each plot has something
//! drawn in it, no text lies on another one or outside its plot, nothing is wider than the screen,
//! and the smallest letters are legible. Skipped where there is no Chromium; `CHROMIUM` names one.

use std::path::{Path, PathBuf};
use std::process::Command;

use esker_workbench::operation::Operation;
use esker_workbench::options::RunOptions;
use esker_workbench::report::plot_frame::escape;
use esker_workbench::report::{page, paper};
use esker_workbench::result::RunResult;
use serde_json::Value;

use crate::reports::pair;
use crate::simulated_service::{options, simulate};

/// Screens: a phone, a tablet, a desk.
const WIDTHS: [u32; 3] = [390, 1_024, 1_600];

/// Smallest legible letters of a plot, in pixels of the screen.
const LETTER_PIXELS_MIN: f64 = 9.0;

/// Smallest picture of a page that shows something, in bytes.
const PICTURE_BYTES_MIN: usize = 20_000;

/// Replaces the page around the page by what it measures.
const MEASURE: &str = r#"<script>
const found = { plots: 0, empty: [], overlapping: [], outside: [], letters: 1e9,
  excess: document.documentElement.scrollWidth - innerWidth };
const crosses = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
for (const figure of document.querySelectorAll("figure")) {
  const title = figure.querySelector("figcaption").textContent;
  const svg = figure.querySelector("svg"), frame = svg.getBoundingClientRect();
  found.plots += 1;
  const marks = [...svg.querySelectorAll(".line, .dots, circle, rect")];
  const drawn = marks.some(mark => { const box = mark.getBBox(); return box.width + box.height > 0; });
  if (!drawn || frame.width < 250 || frame.height < 30) found.empty.push(title);
  const texts = [...svg.querySelectorAll("text")];
  const boxes = texts.map(text => text.getBoundingClientRect());
  boxes.forEach((box, index) => {
    const inside = box.left > frame.left - 1 && box.right < frame.right + 1 &&
      box.top > frame.top - 1 && box.bottom < frame.bottom + 1;
    if (!inside) found.outside.push(title + ": " + texts[index].textContent);
    boxes.slice(0, index).forEach((other, before) => { if (crosses(box, other))
      found.overlapping.push(title + ": " + texts[before].textContent + ", " + texts[index].textContent);
    });
  });
  const scale = frame.width / svg.viewBox.baseVal.width;
  for (const text of texts)
    found.letters = Math.min(found.letters, parseFloat(getComputedStyle(text).fontSize) * scale);
}
parent.document.body.textContent = "measured" + JSON.stringify(found) + "measured";
</script></body>"#;

/// The browser that this machine has.
fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
    let runs = |name: &PathBuf| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    named.into_iter().chain(names).find(runs)
}

/// Runs the browser on `page` and returns what it prints.
fn show(browser: &Path, directory: &Path, page: &str, width: u32, more: &str) -> (String, String) {
    let profile = format!("--user-data-dir={}", directory.join("profile").display());
    let size = format!("--window-size={width},4000");
    let url = format!("file://{}", directory.join(page).display());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--disable-dev-shm-usage", "--enable-logging=stderr", &profile, &size, more, &url])
        .output()
        .expect("the browser runs");
    let [printed, logged] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{logged}");
    (printed, logged)
}

/// What the script measures of a page at a width. The page is in a frame of another, since windows
/// are not as narrow as a phone.
fn measure(browser: &Path, directory: &Path, html: &str, width: u32) -> Value {
    let scripted = escape(&html.replace("</body>", MEASURE));
    let frame = format!(
        "<!DOCTYPE html><html><body><iframe style=\"border:0\" width=\"{width}\" \
         height=\"4000\" srcdoc=\"{scripted}\"></iframe></body></html>"
    );
    std::fs::write(directory.join("scripted.html"), frame).expect("written");
    let (printed, logged) = show(browser, directory, "scripted.html", width, "--dump-dom");
    let found = printed.split("measured").nth(1);
    let found = found.unwrap_or_else(|| panic!("no measurement: {logged}"));
    let found = found.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&");
    serde_json::from_str(&found).expect("JSON")
}

fn check_layout(name: &str, found: &Value, width: u32, plots: u64) {
    let context = format!("{name} at {width} pixels: {found}");
    assert_eq!(found["plots"], plots, "{context}");
    for list in ["empty", "overlapping", "outside"] {
        assert_eq!(found[list], serde_json::json!([]), "{list}: {context}");
    }
    assert!(found["excess"].as_f64().is_some_and(|pixels| pixels <= 0.0), "{context}");
    assert!(found["letters"].as_f64().is_some_and(|size| size >= LETTER_PIXELS_MIN), "{context}");
}

/// Runs of the paper: two backends with one dataset a rank and with ten.
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

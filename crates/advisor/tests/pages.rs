// SPDX-License-Identifier: Apache-2.0
//! Pages of traces: their content, their bounded size, and their layout in a browser.

use esker_advisor::observation::{Observation, StorageKind, mean_of_repetitions};
use esker_advisor::paper::simulated_dataset::{SEED, dataset};
use esker_advisor::paper::{statistics_page, tables};
use esker_advisor::pattern::{PatternSize, TracePattern};
use esker_advisor::trace::darshan::DarshanLog;
use esker_advisor::trace::{TraceReader, page};

use crate::page_layout::{PICTURE_BYTES_MIN, WIDTHS, browser, check_layout, measure, show};
use crate::patterns::{self, SIZE};
use crate::trace_files;

/// Largest page: 24,000 samples in two plots, of about ten bytes each, and the tables.
const PAGE_BYTES_MAX: usize = 800_000;

fn page_of(trace: &[u8]) -> String {
    let reader = TraceReader::open(trace, "trace").expect("a trace");
    page::page(&reader, "a <trace>", 65_536).expect("a page")
}

/// Small files that are read or written once have neither offsets nor distances.
fn plots(name: &str) -> u64 {
    if name == "mix" { 2 } else { 4 }
}

fn pages() -> Vec<(&'static str, String)> {
    let log = include_bytes!("data/darshan/dxt.darshan");
    let log = DarshanLog::open(log, "log").expect("a log");
    let (traced, _) = log.write_trace(Vec::new()).expect("a trace");
    let size = PatternSize { requests: 400, gap_bytes: 777, shift_bytes: 5, ..SIZE };
    let mix = PatternSize { requests: 50, ..SIZE };
    vec![
        ("hpio", page_of(&patterns::trace(TracePattern::Hpio, &size))),
        ("mix", page_of(&patterns::trace(TracePattern::WorkbenchMix, &mix))),
        ("app1", page_of(&patterns::trace(TracePattern::LanlApp1, &size))),
        ("darshan", page_of(&traced)),
    ]
}

#[test]
fn pages_show_ranks_offsets_sizes_and_distances() {
    for (name, page) in pages() {
        assert_eq!(page.matches("<svg").count() as u64, plots(name), "{name}");
        assert!(page.contains("<h1>Trace: a &lt;trace&gt;</h1>") && page.ends_with("</html>\n"));
        assert!(page.contains("mean gap (g)") && page.contains("<h2>Files</h2>"), "{name}");
    }
    let hostile = trace_files::trace(|writer| {
        writer.file(b"/<script>alert(1)</script>").expect("a path");
        let file = writer.file(b"/<img src=x>").expect("a path");
        let read = esker_advisor::trace::TraceOperation::Read;
        let record = esker_advisor::trace::TraceRecord::new(0, read);
        let record = esker_advisor::trace::TraceRecord { file, bytes: 1, result: 1, ..record };
        writer.push(&record).expect("a record");
    });
    let page = page_of(&hostile);
    assert!(!page.contains("<img") && page.contains("&lt;img"), "paths are text");
    assert!(page_of(&trace_files::trace(|_| {})).contains("0 calls"));
}

#[test]
fn pages_are_bounded() {
    let size = PatternSize { requests: 20_000, request_bytes: 100, gap_bytes: 3, ..SIZE };
    let page = page_of(&patterns::trace(TracePattern::Hpio, &size));
    assert!(page.len() < PAGE_BYTES_MAX, "{}", page.len());
    assert!(page.contains("80016 calls"));
}

/// The page of the regressions of `rows`.
fn statistics_of(rows: &[Observation]) -> String {
    let kinds = [StorageKind::FileSystem, StorageKind::KeyValue];
    let tables = kinds.map(|kind| tables::of_kind(rows, kind).expect("tables"));
    statistics_page::page(&tables, "a <dataset>")
}

/// The places of the dots of plot `index` of a page.
fn dots(page: &str, index: usize) -> Vec<(u32, u32)> {
    let svg = page.split("<svg").nth(index + 1).expect("a plot");
    let path = svg.split("class=\"dots\"").nth(1).and_then(|rest| rest.split("d=\"").nth(1));
    let path = path.and_then(|rest| rest.split('"').next()).expect("dots");
    let place = |dot: &str| {
        let (x, y) = dot.split_once(' ')?;
        Some((x.parse().ok()?, y.parse().ok()?))
    };
    path.split("h0").filter_map(|dot| place(dot.strip_prefix('M')?)).collect()
}

#[test]
fn statistics_pages_show_residuals() {
    let mut rows = mean_of_repetitions(&dataset(SEED));
    let page = statistics_of(&rows);
    assert_eq!(page.matches("<svg").count(), 6);
    assert!(
        page.contains("<h1>Regressions of a &lt;dataset&gt;</h1>") && !page.contains("<dataset>")
    );
    assert!(page.contains("they are no measurements") && page.ends_with("</html>\n"));
    // A Q-Q plot ascends: with x, y never goes down on the screen.
    let mut places = dots(&page, 1);
    assert!(places.len() > 50, "{places:?}");
    places.sort_unstable_by_key(|(x, y)| (*x, std::cmp::Reverse(*y)));
    assert!(places.is_sorted_by(|left, right| left.1 >= right.1), "{places:?}");
    // One row that is far too fast is at the top of both plots, and the others are near 0 then.
    let fast = rows.iter_mut().find(|row| row.kind == StorageKind::FileSystem).expect("a row");
    fast.microseconds /= 1e6;
    let page = statistics_of(&rows);
    for plot in [0, 1] {
        let mut heights: Vec<u32> = dots(&page, plot).iter().map(|place| place.1).collect();
        heights.sort_unstable();
        assert!(heights[0] < 20 && heights[1] > 90, "{heights:?}");
    }
}

#[test]
fn pages_of_many_rows_are_bounded() {
    let rows = dataset(SEED);
    let many: Vec<_> = (1..=40_u32)
        .flat_map(|copy| rows.iter().cloned().map(move |row| (copy, row)))
        .map(|(copy, row)| {
            let microseconds = row.microseconds * f64::from(copy);
            Observation { microseconds, ..row }
        })
        .collect();
    let page = statistics_of(&many);
    assert!(many.len() > 50_000 && page.len() < PAGE_BYTES_MAX, "{}", page.len());
}

#[test]
fn pages_are_legible_at_every_width() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no Chromium; CHROMIUM names one");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let statistics = statistics_of(&mean_of_repetitions(&dataset(SEED)));
    let all = pages().into_iter().map(|(name, page)| (name, page, plots(name)));
    for (name, page, plots) in all.chain([("statistics", statistics, 6)]) {
        for width in WIDTHS {
            check_layout(name, &measure(&browser, at, &page, width), width, plots);
        }
        std::fs::write(at.join("trace.html"), &page).expect("written");
        let picture = at.join("trace.png");
        let option = format!("--screenshot={}", picture.display());
        let (_, logged) = show(&browser, at, "trace.html", WIDTHS[1], &option);
        assert!(!logged.contains("CONSOLE"), "the page logs nothing: {logged}");
        let bytes = std::fs::read(&picture).expect("a picture");
        assert!(bytes.len() > PICTURE_BYTES_MIN, "{name}: {}", bytes.len());
        if let Some(kept) = std::env::var_os("ESKER_PICTURES") {
            let kept = std::path::Path::new(&kept).join(format!("{name}.png"));
            std::fs::copy(&picture, kept).expect("copied");
        }
    }
}

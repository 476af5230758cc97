// SPDX-License-Identifier: Apache-2.0
//! Pages of traces: what they show, in bounded size, and how a browser lays them out.

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

#[test]
fn pages_are_legible_at_every_width() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no Chromium; CHROMIUM names one");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    for (name, page) in pages() {
        for width in WIDTHS {
            check_layout(name, &measure(&browser, at, &page, width), width, plots(name));
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

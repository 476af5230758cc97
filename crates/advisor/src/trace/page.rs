// SPDX-License-Identifier: Apache-2.0
//! Page: a trace as one HTML page that opens from disk, without a script or a network.
//!
//! Ranks over time, offsets over time, sizes of requests, and distances between them, with the
//! features of the application as a table. Plots and style are those of the workbench's reports.

use std::fmt::Write;

use esker_base::Result;
use esker_workbench::report::plot_frame::{PlotAxis, PlotFrame, escape};
use esker_workbench::report::plots::COLORS;
use esker_workbench::report::{STYLE, figure, table};
use esker_workbench::summary::duration;

use super::page_samples::PageSamples;
use super::{ColumnSelection, FeaturePass, TraceOperation, TraceReader, TraceRecord, TraceSource};
use crate::features::TraceFeatures;

/// The meanings of the colours.
const LEGEND: [&str; 3] = ["read", "write", "metadata"];

/// Files in the table.
const FILE_ROWS: usize = 12;

/// The page of `trace`, called `name`.
///
/// # Errors
/// As [`TraceReader::read_batch`].
pub fn page<S: TraceSource>(
    trace: &TraceReader<S>,
    name: &str,
    stripe_bytes: u64,
) -> Result<String> {
    let (mut pass, mut samples) = (FeaturePass::new(stripe_bytes), PageSamples::default());
    trace.for_each(ColumnSelection::Accesses, |batch| {
        pass.add(batch);
        samples.add(batch);
        Ok(())
    })?;
    let features = pass.finish(|file| trace.path(file));
    let title = escape(&format!("Trace: {name}"));
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>"
    );
    let origin = trace.origin();
    let program = escape(&format!("{} ({})", origin.program, origin.source));
    write!(out, "<p>{program}: {} calls</p>", samples.rows()).expect("strings grow");
    out.push_str("<div class=\"plots\">");
    let legend = LEGEND.map(str::to_owned);
    figure(&mut out, "Ranks over time", &legend, &ranks_over_time(&samples));
    if let Some(file) = samples.largest_file() {
        // Small files that are read or written once have no pattern of offsets.
        if samples.distances.total() > 0 {
            let path = trace.path(super::TraceFile(file));
            let title = format!("Offsets over time in {path}");
            figure(&mut out, &title, &legend[..2], &offsets_over_time(&samples, file, &title));
        }
        let sizes = counts(&samples.sizes.sorted(), "Requests by size", "bytes of a request", 0);
        figure(&mut out, "Requests by size", &[], &sizes);
    }
    if samples.distances.total() > 0 {
        let title = "Distance to the request before, plus 1";
        figure(&mut out, title, &[], &counts(&samples.distances.sorted(), title, "bytes", 1));
    }
    out.push_str("</div><h2>Features</h2>");
    table(&mut out, &["", ""], &[0], &feature_rows(&features));
    out.push_str("<h2>Calls</h2>");
    let operations = TraceOperation::ALL.iter().zip(samples.operations);
    let operations = operations.filter(|(_, count)| *count > 0);
    let rows: Vec<_> =
        operations.map(|(kind, count)| vec![kind.to_string(), count.to_string()]).collect();
    table(&mut out, &["call", "number"], &[0], &rows);
    out.push_str("<h2>Files</h2>");
    let mut files: Vec<_> = samples.file_bytes.iter().collect();
    files.sort_by_key(|(file, bytes)| (std::cmp::Reverse(**bytes), **file));
    let row = |(file, transferred): &(&u32, &u64)| {
        vec![trace.path(super::TraceFile(**file)).to_owned(), bytes(**transferred as f64)]
    };
    let rows: Vec<_> = files.iter().take(FILE_ROWS).map(row).collect();
    table(&mut out, &["file", "transferred"], &[0], &rows);
    if files.len() > FILE_ROWS {
        write!(out, "<p>and {} more files</p>", files.len() - FILE_ROWS).expect("strings grow");
    }
    out.push_str("</main></body></html>\n");
    Ok(out)
}

fn colour(operation: TraceOperation) -> usize {
    match operation {
        TraceOperation::Read => 0,
        TraceOperation::Write => 1,
        _ => 2,
    }
}

/// A label of nothing but 0 leaves room for that of the other axis.
fn seconds(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { duration(value * 1e9) }
}

fn bytes(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1_024.0 && unit + 1 < units.len() {
        value /= 1_024.0;
        unit += 1;
    }
    match value {
        value if value < 10.0 && value.fract() > 0.0 => format!("{value:.1} {}", units[unit]),
        value => format!("{value:.0} {}", units[unit]),
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { String::new() }
}

/// The time axis: to the end of the last call.
fn time_axis(samples: &PageSamples) -> PlotAxis {
    PlotAxis::linear("time", samples.end_ns as f64 / 1e9, seconds)
}

fn begin(call: &TraceRecord) -> f64 {
    call.begin_ns as f64 / 1e9
}

fn ranks_over_time(samples: &PageSamples) -> String {
    let y = PlotAxis::linear("rank", f64::from(samples.rank_max).max(1.0), number);
    let mut frame = PlotFrame::new("Ranks over time", time_axis(samples), y);
    for (index, color) in COLORS.iter().enumerate().take(LEGEND.len()) {
        let of_kind = samples.calls.iter().filter(|call| colour(call.operation) == index);
        frame.dots(of_kind.map(|call| (begin(call), f64::from(call.rank))), color);
    }
    frame.finish()
}

fn offsets_over_time(samples: &PageSamples, file: u32, title: &str) -> String {
    let of_file = || {
        let calls = samples.calls.iter();
        calls.filter(move |call| call.operation.is_transfer() && call.file.0 == file)
    };
    let high = of_file().map(|call| call.offset + call.bytes).max().unwrap_or_default();
    let y = PlotAxis::linear("offset", high as f64, bytes);
    let mut frame = PlotFrame::new(title, time_axis(samples), y);
    for (index, color) in COLORS.iter().enumerate().take(2) {
        let of_kind = of_file().filter(|call| colour(call.operation) == index);
        frame.dots(of_kind.map(|call| (begin(call), call.offset as f64)), color);
    }
    frame.finish()
}

/// Counts by bytes, both logarithmic; `added` to the bytes, where they may be 0.
fn counts(sorted: &[(u64, u64)], title: &str, what: &str, added: u64) -> String {
    let points = || sorted.iter().map(|(size, count)| ((size + added) as f64, *count as f64));
    let x = PlotAxis::log(what, points().map(|point| point.0), bytes);
    let y = PlotAxis::log("requests", points().map(|point| point.1), number);
    let mut frame = PlotFrame::new(title, x, y);
    // A page shows at most as many points as the eye can tell apart.
    let step = sorted.len().div_ceil(400).max(1);
    for (index, point) in points().enumerate() {
        if index % step == 0 || point.1 > 0.01 * sorted.len() as f64 {
            let text = format!("{} bytes: {}", point.0 as u64 - added, point.1);
            frame.marked_dot(point, COLORS[0], &text);
        }
    }
    frame.finish()
}

fn feature_rows(features: &TraceFeatures) -> Vec<Vec<String>> {
    let share = |part: u64, whole: u64| match whole {
        0 => "–".to_owned(),
        whole => format!("{:.1} %", 100.0 * part as f64 / whole as f64),
    };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let requests = features.requests();
    vec![
        row("processes that transfer bytes (p)", features.processes.to_string()),
        row("bytes read", bytes(features.read_bytes as f64)),
        row("bytes written", bytes(features.written_bytes as f64)),
        row("requests", requests.to_string()),
        row("median request (r)", format!("{} B", features.request_bytes_median)),
        row(
            "contiguous requests",
            share(features.contiguous_requests, features.following_requests),
        ),
        row("mean gap (g)", format!("{} B", features.gap_bytes_mean)),
        row(
            &format!("requests not aligned to {} B", features.stripe_bytes),
            share(features.unaligned_requests, requests),
        ),
        row("median shift of those (A)", format!("{} B", features.unaligned_bytes_median)),
        row("requests below 64 KiB", share(features.small_requests, requests)),
        row("opens, of these creating", format!("{}, {}", features.opens, features.creates)),
        row("closes", features.closes.to_string()),
        row("other metadata operations", features.other_metadata.to_string()),
        row("files, of these shared", format!("{}, {}", features.files, features.shared_files)),
        row("most files of a directory", features.files_in_directory_max.to_string()),
        row("longest time of a process in I/O", seconds(features.io_seconds)),
    ]
}

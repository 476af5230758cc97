// SPDX-License-Identifier: Apache-2.0
//! Progress: a line on a terminal that shows how far a command has come; nothing in a pipe.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::time::Duration;

use esker_base::Result;
use esker_base::store::{CountedStore, SharedStore};
use esker_fs::repository::Repository;
use esker_fs::traversal::tally::TransferTally;
use esker_workbench::progress::RunProgress;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::context::CommandContext;
use crate::text;

/// Interval between redraws.
const TICK: Duration = Duration::from_millis(100);

/// Shows `tally` on a line while `work` runs, then clears the line.
pub fn watch<T>(verb: &'static str, tally: &Arc<TransferTally>, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let shown = tally.clone();
    draw_while(work, move |elapsed| {
        let counts = shown.counts();
        let seconds = elapsed.as_secs_f64().max(0.001);
        let rate = (counts.entries() as f64 / seconds) as u64;
        format!(
            "{verb} {} entries, {}, {} entries/s",
            text::count(counts.entries()),
            text::bytes(counts.bytes),
            text::count(rate)
        )
    })
}

/// Opens the store for `work`; shows the amounts that `work` reads, writes and deletes there.
pub fn watch_store<T>(
    context: &CommandContext,
    verb: &'static str,
    work: impl FnOnce(&Repository) -> Result<T>,
) -> Result<T> {
    let store = context.store()?;
    if !stderr().is_terminal() {
        return work(&Repository::new(store));
    }
    let counted = Arc::new(CountedStore::new(store));
    let store: SharedStore = counted.clone();
    draw_while(
        || work(&Repository::new(store)),
        move |_| {
            let counts = counted.counts();
            format!(
                "{verb} {} read, {} written, {}",
                text::bytes(counts.read_bytes),
                text::bytes(counts.written_bytes + counts.log_bytes),
                text::counted(counts.deletes, "deletion"),
            )
        },
    )
}

/// Shows the phase of a run of the workbench, its operations and their mean rate while `work` runs.
pub fn watch_workbench<T>(counts: &Arc<RunProgress>, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let shown = counts.clone();
    draw_while(work, move |elapsed| {
        let (phase, operations) = shown.read();
        let rate = (operations as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
        format!("{phase}: {} operations, {}/s", text::count(operations), text::count(rate))
    })
}

/// Redraws `line`, which gets the elapsed time, at intervals while `work` runs.
fn draw_while<T>(
    work: impl FnOnce() -> T,
    line: impl Fn(Duration) -> String + Send + Sync + Clone + 'static,
) -> T {
    let state = move |state: &ProgressState, drawn: &mut dyn fmt::Write| {
        // A failure to draw the line is not worth an error.
        let _ = drawn.write_str(&line(state.elapsed()));
    };
    let style = ProgressStyle::with_template("{spinner} {tally} [{elapsed}]")
        .expect("a constant template that is good")
        .with_key("tally", state);
    let line = ProgressBar::new_spinner().with_style(style);
    line.enable_steady_tick(TICK);
    let done = work();
    line.finish_and_clear();
    done
}

//! Progress: a line on a terminal that says how far a command has come; none in a pipe.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::time::Duration;

use esker_base::Result;
use esker_base::store::{CountedStore, SharedStore};
use esker_fs::repository::Repository;
use esker_fs::tally::Tally;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::context::Context;
use crate::text;

/// How often the line is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A line that shows `tally` while `work` runs, and goes away.
pub fn watch<T>(verb: &'static str, tally: &Arc<Tally>, work: impl FnOnce() -> T) -> T {
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

/// Opens the store for `work`; shows what that reads, writes and deletes there.
pub fn watch_store<T>(
    context: &Context,
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

/// Draws what `line` says after some time for as long as `work` runs.
fn draw_while<T>(
    work: impl FnOnce() -> T,
    line: impl Fn(Duration) -> String + Send + Sync + Clone + 'static,
) -> T {
    let state = move |state: &ProgressState, drawn: &mut dyn fmt::Write| {
        // A line that cannot be drawn is not worth an error.
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

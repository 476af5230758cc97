//! Progress: a line on a terminal that says how far an import or export has come; none in a pipe.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::time::Duration;

use esker_fs::tally::Tally;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::text;

/// How often the line is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A line that shows `tally` while `work` runs, and goes away.
pub fn watch<T>(verb: &'static str, tally: &Arc<Tally>, work: impl FnOnce() -> T) -> T {
    if !stderr().is_terminal() {
        return work();
    }
    let shown = tally.clone();
    let state = move |state: &ProgressState, line: &mut dyn fmt::Write| {
        let counts = shown.counts();
        let seconds = state.elapsed().as_secs_f64().max(0.001);
        let rate = (counts.entries() as f64 / seconds) as u64;
        // A line that cannot be drawn is not worth an error.
        let _ = write!(
            line,
            "{verb} {} entries, {}, {} entries/s",
            text::count(counts.entries()),
            text::bytes(counts.bytes),
            text::count(rate)
        );
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

// SPDX-License-Identifier: Apache-2.0
//! Transfer: the final report of an import or export.

use std::process::ExitCode;

use esker_base::Result;
use esker_fs::traversal::tally::{TransferProblem, TransferTally};
use serde_json::json;

use crate::context::CommandContext;
use crate::output::notice;
use crate::text;

/// Maximum number of problems listed one by one.
const PROBLEMS_SHOWN_MAX: usize = 20;

/// Prints the totals and the problems. The exit code is that of the first problem.
pub fn report(
    context: &CommandContext,
    verb: &str,
    tally: &TransferTally,
    seconds: f64,
) -> Result<ExitCode> {
    let counts = tally.counts();
    let problems = tally.take_problems();
    let entries_per_second = (counts.entries() as f64 / seconds.max(1e-6)) as u64;
    if context.out.is_json() {
        let shown: Vec<_> = problems
            .iter()
            .map(|problem| {
                let mut object = serde_json::Map::new();
                text::put_bytes(&mut object, "path", &problem.path);
                object.insert("kind".into(), format!("{:?}", problem.error.kind()).into());
                object.insert("error".into(), problem.error.to_string().into());
                object
            })
            .collect();
        context.out.json(json!({
            "operation": verb,
            "files": counts.files,
            "directories": counts.directories,
            "symlinks": counts.symlinks,
            "links": counts.links,
            "specials": counts.specials,
            "bytes": counts.bytes,
            "seconds": seconds,
            "entries_per_second": entries_per_second,
            "owners_dropped": counts.owners_dropped,
            "attributes_dropped": counts.attributes_dropped,
            "problem_count": counts.problems,
            "problems": shown,
        }))?;
    } else {
        context.out.line(format!(
            "{verb} {}, {}, {}: {} in {seconds:.2} s, {} entries/s",
            text::counted(counts.files + counts.specials, "file"),
            text::counted(counts.directories, "directory"),
            text::counted(counts.symlinks + counts.links, "link"),
            text::bytes(counts.bytes),
            text::count(entries_per_second),
        ))?;
    }
    context.out.flush()?;
    if counts.owners_dropped > 0 {
        notice(format!(
            "{} of other users or groups belong to you now, without set-id bits: only the superuser \
             can keep owners",
            text::counted(counts.owners_dropped, "entry"),
        ));
    }
    if counts.attributes_dropped > 0 {
        notice(format!(
            "left out {} that only the superuser can set",
            text::counted(counts.attributes_dropped, "extended attribute"),
        ));
    }
    report_problems(&problems, counts.problems);
    let code = problems.first().map_or(0, |problem| problem.error.kind().exit_code());
    Ok(ExitCode::from(code))
}

/// Prints some of `count` problems.
pub fn report_problems(problems: &[TransferProblem], count: u64) {
    for problem in problems.iter().take(PROBLEMS_SHOWN_MAX) {
        notice(format!("{}: {}", text::printable(&problem.path), problem.error));
    }
    if count > PROBLEMS_SHOWN_MAX as u64 {
        let more = count - PROBLEMS_SHOWN_MAX as u64;
        notice(format!("and {} more; --json lists up to 1000", text::counted(more, "problem")));
    }
}

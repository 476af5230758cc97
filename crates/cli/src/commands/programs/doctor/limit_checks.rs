// SPDX-License-Identifier: Apache-2.0
//! Limit checks: how many files this user's processes may have open.

use rustix::process::{Resource, getrlimit};

use super::check::{CheckStatus, MachineCheck};
use crate::context::CommandContext;
use crate::text;

/// Open files that `esker run --at` and large sessions should have.
const OPEN_FILES_MIN: u64 = 4096;

/// The limit on open files, which every command raises as far as it may.
pub fn open_files_check(context: &CommandContext) -> MachineCheck {
    check_of(context.open_files_before, getrlimit(Resource::Nofile).maximum)
}

/// `None` stands for no limit.
fn check_of(soft: Option<u64>, hard: Option<u64>) -> MachineCheck {
    let shown = |limit: Option<u64>| limit.map_or("any number of".to_owned(), text::count);
    let finding = format!(
        "{} files may be open at once: the limit is {}, and Esker raises it as far as it may",
        shown(hard),
        shown(soft)
    );
    let check = if hard.is_none_or(|hard| hard >= OPEN_FILES_MIN) {
        MachineCheck::new("open-files", CheckStatus::Works, finding)
    } else {
        MachineCheck::new("open-files", CheckStatus::Limited, finding).advise(
            "all programs under one `esker run --at` share it: ask the administrator for a higher \
             hard limit (`ulimit -Hn`)",
        )
    };
    check.with("soft", soft).with("hard", hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hard_limit_decides() {
        for (soft, hard, status) in [
            (Some(1024), Some(1 << 20), CheckStatus::Works),
            (Some(1024), None, CheckStatus::Works),
            (Some(1024), Some(1024), CheckStatus::Limited),
        ] {
            assert_eq!(check_of(soft, hard).status, status);
        }
        let check = check_of(Some(256), None);
        assert!(check.finding.starts_with("any number of files") && check.finding.contains("256"));
        assert_eq!(check.values["hard"], serde_json::Value::Null);
    }
}

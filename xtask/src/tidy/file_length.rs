// SPDX-License-Identifier: Apache-2.0
//! File length: one file, one idea. Long files give a reason; very long ones are refused.

use super::StyleProblem;
use super::rust_source::RustSource;

/// Lines of code above which the header must give a reason in a `//! Length:` line.
const LINES_UNEXPLAINED_MAX: usize = 600;
/// Lines of code above which a file is refused, even with a reason.
const LINES_MAX: usize = 1000;
const _: () = assert!(LINES_UNEXPLAINED_MAX <= LINES_MAX);

/// Blank lines and comments do not count; tests do: long tests go to `x/tests.rs`.
pub fn file_length(source: &RustSource) -> Vec<StyleProblem> {
    let lines = source.code_lines();
    let problem = |what: String| vec![StyleProblem::new(&source.path, 1, what)];
    if lines > LINES_MAX {
        problem(format!("{lines} lines of code, over {LINES_MAX}: split it"))
    } else if lines > LINES_UNEXPLAINED_MAX && !has_reason(&source.text) {
        problem(format!(
            "{lines} lines of code, over {LINES_UNEXPLAINED_MAX}: split it, or give the reason \
             in the header as `//! Length: …`"
        ))
    } else {
        Vec::new()
    }
}

fn has_reason(text: &str) -> bool {
    text.lines()
        .take_while(|line| line.starts_with("//!"))
        .filter_map(|line| line.strip_prefix("//! Length:"))
        .any(|reason| !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(header: &str, lines: usize) -> usize {
        let text = format!("{header}\n{}", "// free\n\nconst A: u8 = 0;\n".repeat(lines));
        file_length(&RustSource::parse("a.rs", &text).expect("Rust")).len()
    }

    #[test]
    fn length_needs_a_reason_and_then_fails() {
        assert_eq!(problems("//! A.", LINES_UNEXPLAINED_MAX), 0);
        assert_eq!(problems("//! A.", LINES_UNEXPLAINED_MAX + 1), 1);
        assert_eq!(problems("//! A.\n//! Length:", LINES_UNEXPLAINED_MAX + 1), 1);
        assert_eq!(problems("//! A.\n//! Length: one table.", LINES_UNEXPLAINED_MAX + 1), 0);
        assert_eq!(problems("//! A.\n//! Length: one table.", LINES_MAX), 0);
        assert_eq!(problems("//! A.\n//! Length: one table.", LINES_MAX + 1), 1);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Module header: every file begins with its licence and a description of itself.

use super::StyleProblem;
use super::rust_source::RustSource;

/// The first line of every file.
const LICENCE: &str = "// SPDX-License-Identifier: Apache-2.0";

/// The first line names the licence; the second is `//!` followed by text.
pub fn module_header(source: &RustSource) -> Vec<StyleProblem> {
    let mut lines = source.text.lines();
    if lines.next() != Some(LICENCE) {
        return vec![StyleProblem::new(
            &source.path,
            1,
            format!("does not begin with `{LICENCE}`"),
        )];
    }
    match lines.next().unwrap_or_default().strip_prefix("//! ") {
        Some(text) if !text.trim().is_empty() => Vec::new(),
        _ => vec![StyleProblem::new(&source.path, 2, "has no `//!` header")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_are_licence_and_header() {
        let problems =
            |text: &str| module_header(&RustSource::parse("a.rs", text).expect("Rust")).len();
        let licensed = |text: &str| problems(&format!("{LICENCE}\n{text}"));
        assert_eq!(licensed("//! Block: sorted records.\n"), 0);
        assert_eq!(problems("//! Block: sorted records.\n"), 1);
        assert_eq!(problems(""), 1);
        assert_eq!(licensed("//!\nuse a;\n"), 1);
        assert_eq!(licensed("use a;\n"), 1);
    }
}

//! Module header: every file begins with a description of itself.

use super::StyleProblem;
use super::rust_source::RustSource;

/// The first line must be `//!` followed by text.
pub fn module_header(source: &RustSource) -> Vec<StyleProblem> {
    let first = source.text.lines().next().unwrap_or_default();
    match first.strip_prefix("//! ") {
        Some(text) if !text.trim().is_empty() => Vec::new(),
        _ => vec![StyleProblem::new(&source.path, 1, "does not begin with a `//!` header")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_a_header() {
        let problems = |text| module_header(&RustSource::parse("a.rs", text).expect("Rust")).len();
        assert_eq!(problems("//! Block: sorted records.\n"), 0);
        assert_eq!(problems(""), 1);
        assert_eq!(problems("//!\nuse a;\n"), 1);
        assert_eq!(problems("use a;\n"), 1);
    }
}

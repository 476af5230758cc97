// SPDX-License-Identifier: Apache-2.0
//! Module header: every file begins with its licence, and one in Rust with a description of itself.

use super::StyleProblem;
use super::rust_source::RustSource;
use super::tree::SourceTree;

/// The first line of every Rust file.
const LICENCE: &str = "// SPDX-License-Identifier: Apache-2.0";
/// Endings of the other files that are written by hand and can hold a comment.
const COMMENTED: &[&str] = &[
    ".awk",
    ".c",
    ".cc",
    ".cmake",
    ".cpp",
    ".css",
    ".f90",
    ".h",
    ".hpp",
    ".in",
    ".java",
    ".map",
    ".py",
    ".service",
    ".sh",
    ".svg",
    ".toml",
    "/run",
    "Dockerfile",
    "Makefile",
    "mount.esker",
];
/// Files with such endings that a program wrote.
const GENERATED: &[&str] = &["examples/plasma/two-streams.svg"];
/// The licence follows at most the line of an interpreter.
const LICENCE_LINES_MAX: usize = 2;

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

/// The first lines of a file in another language name the licence, too.
pub fn licence(tree: &SourceTree) -> Vec<StyleProblem> {
    let text = LICENCE.trim_start_matches("// ");
    tree.files()
        .filter(|(path, _)| COMMENTED.iter().any(|ending| path.ends_with(ending)))
        .filter(|(path, _)| !GENERATED.contains(path))
        .filter(|(_, file)| !file.lines().take(LICENCE_LINES_MAX).any(|line| line.contains(text)))
        .map(|(path, _)| StyleProblem::new(path, 1, format!("does not begin with `{text}`")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_other_languages_name_the_licence() {
        let name = "SPDX-License-Identifier: Apache-2.0";
        let tree = SourceTree::of_files(&[
            ("clippy.toml", "allow = true\n"),
            ("rustfmt.toml", &format!("# {name}\nmax_width = 100\n")),
            (".ci/run", &format!("#!/bin/sh\n# {name}\n")),
            ("scripts/late.sh", &format!("#!/bin/sh\n\n\n# {name}\n")),
            ("crates/a/tests/data/cp.strace", "open\n"),
            ("examples/plasma/two-streams.svg", "<svg/>\n"),
        ]);
        let paths: Vec<String> = licence(&tree).into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["clippy.toml", "scripts/late.sh"]);
    }

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

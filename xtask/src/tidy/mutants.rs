// SPDX-License-Identifier: Apache-2.0
//! Mutants: each patch that brings a fixed defect back applies to the tree and names its test.
//!
//! A change of the lines around a fix would otherwise leave the proof that a test notices the defect
//! behind, until somebody runs all mutants.

use super::StyleProblem;
use super::tree::SourceTree;

const FOLDER: &str = "crates/sim/mutants/";

/// Checks that every hunk's lines are in its file, and that every mutant says how to test it.
pub fn mutants_apply(tree: &SourceTree) -> Vec<StyleProblem> {
    let patches = tree.files().filter(|(path, _)| path.starts_with(FOLDER));
    patches.flat_map(|(path, text)| problems_of(tree, path, text)).collect()
}

fn problems_of(tree: &SourceTree, path: &str, text: &str) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    if !text.lines().any(|line| line.starts_with("Test: -p ")) {
        problems.push(StyleProblem::new(path, 1, "has no line `Test: -p PACKAGE…`"));
    }
    let hunks = hunks(text);
    if hunks.is_empty() {
        problems.push(StyleProblem::new(path, 1, "changes nothing"));
    }
    for Hunk { line, file, before } in hunks {
        if !tree.text(file).is_some_and(|source| holds_lines(source, &before)) {
            problems.push(StyleProblem::new(path, line, format!("does not apply to `{file}`")));
        }
    }
    problems
}

/// True if `lines` are whole lines of `source`.
fn holds_lines(source: &str, lines: &str) -> bool {
    source.starts_with(lines) || source.contains(&format!("\n{lines}"))
}

/// A change of one place of a file.
struct Hunk<'a> {
    /// Where it begins in its patch.
    line: usize,
    file: &'a str,
    /// The lines that it expects, those that it removes among them.
    before: String,
}

fn hunks(patch: &str) -> Vec<Hunk<'_>> {
    let mut found: Vec<Hunk<'_>> = Vec::new();
    let mut file = "";
    let mut is_in_hunk = false;
    for (index, line) in patch.lines().enumerate() {
        if let Some(path) = line.strip_prefix("--- a/") {
            (file, is_in_hunk) = (path, false);
        } else if line.starts_with("@@ ") {
            found.push(Hunk { line: index + 1, file, before: String::new() });
            is_in_hunk = true;
        } else if let Some(hunk) = found.last_mut().filter(|_| is_in_hunk)
            && let Some(kept) = line.strip_prefix([' ', '-'])
        {
            hunk.before.push_str(kept);
            hunk.before.push('\n');
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn a() {\n    first();\n\n    second();\n}\n";

    fn messages(patch: &str) -> Vec<String> {
        let tree = SourceTree::of_files(&[("src/a.rs", SOURCE), ("crates/sim/mutants/m", patch)]);
        mutants_apply(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_patch_that_applies_is_accepted() {
        let patch = "A defect.\n\nTest: -p a\n\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,4 +1,3 @@\n fn \
                     a() {\n-    first();\n \n     second();\n";
        assert_eq!(messages(patch), Vec::<String>::new());
    }

    #[test]
    fn a_patch_of_other_lines_is_found() {
        let patch = "A defect.\n\nTest: -p a\n\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n fn \
                     a() {\n-    other();\n";
        assert_eq!(messages(patch), ["crates/sim/mutants/m:7: does not apply to `src/a.rs`"]);
    }

    #[test]
    fn a_patch_without_a_test_or_a_change_is_found() {
        let expected = [
            "crates/sim/mutants/m:1: has no line `Test: -p PACKAGE…`",
            "crates/sim/mutants/m:1: changes nothing",
        ];
        assert_eq!(messages("A defect.\n"), expected);
    }
}

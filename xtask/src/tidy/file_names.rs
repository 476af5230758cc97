// SPDX-License-Identifier: Apache-2.0
//! File names: a file is named by the noun that it is about, never as a collection of leftovers.

use super::StyleProblem;
use super::tree::SourceTree;

/// Names that do not describe the contents.
const NAMES_FORBIDDEN: &[&str] = &[
    "util", "utils", "common", "helper", "helpers", "manager", "managers", "type", "types", "misc",
];

/// Neither a Rust file nor a directory above one has a forbidden name.
pub fn file_names(tree: &SourceTree) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    for (path, _) in tree.files() {
        let Some(stem) = path.strip_suffix(".rs") else { continue };
        for name in stem.split('/').filter(|name| NAMES_FORBIDDEN.contains(name)) {
            problems.push(StyleProblem::new(path, 1, format!("`{name}` is vague: say what it is")));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_named_by_their_noun() {
        let tree = SourceTree::of_files(&[
            ("crates/a/src/utils.rs", ""),
            ("crates/a/tests/common/mod.rs", ""),
            ("crates/a/src/common_prefix.rs", ""),
            ("docs/types.md", ""),
        ]);
        let paths: Vec<String> = file_names(&tree).into_iter().map(|p| p.path).collect();
        assert_eq!(paths, ["crates/a/src/utils.rs", "crates/a/tests/common/mod.rs"]);
    }
}

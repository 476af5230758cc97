// SPDX-License-Identifier: Apache-2.0
//! Machine paths: no file names a path that exists on one machine only.

use super::StyleProblem;
use super::tree::SourceTree;

/// Written in two pieces, so that this file passes its own rule.
const PATHS_FORBIDDEN: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Checks that no text has a forbidden path. `docs/x/` and `NAME:/x/` are not machine paths for any
/// `x`.
pub fn machine_paths(tree: &SourceTree) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    for (path, text) in tree.files() {
        for (index, line) in text.lines().enumerate() {
            for forbidden in PATHS_FORBIDDEN.iter().filter(|place| names_place(line, place)) {
                let message = format!("`{forbidden}` exists on one machine only");
                problems.push(StyleProblem::new(path, index + 1, message));
            }
        }
    }
    problems
}

fn names_place(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let file_url = line[..start].ends_with("file://");
        file_url || !before.is_some_and(|c| c.is_alphanumeric() || "_-.:/}~$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_places_are_refused() {
        let place = PATHS_FORBIDDEN[0];
        for bad in ["{}x", "cd {}main", "\"{}a\"", "DIR={}a", "(see {}a)", "file://{}a"] {
            assert!(names_place(&bad.replace("{}", place), place), "{bad}");
        }
        for good in ["docs{}a", "..{}a", "run:{}a", "$HOME{}a", "${D}{}a", "/work", "/works/"] {
            assert!(!names_place(&good.replace("{}", place), place), "{good}");
        }
    }
}

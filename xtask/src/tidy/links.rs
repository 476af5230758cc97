// SPDX-License-Identifier: Apache-2.0
//! Links: a relative link in a Markdown file must lead to a file or directory of the tree.
//!
//! Recognizes inline links, images and reference definitions; skips code. Fragments are not
//! checked.

use super::StyleProblem;
use super::tree::SourceTree;

/// Checks that every relative link resolves inside the tree.
pub fn relative_links(tree: &SourceTree) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        for (line, link) in links(text) {
            if !resolve(path, &link).is_some_and(|target| tree.holds(&target)) {
                problems.push(StyleProblem::new(path, line, format!("`{link}` leads nowhere")));
            }
        }
    }
    problems
}

/// Relative links with their line numbers, without fragments.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if let Some(mark) = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark)) {
            match fence {
                None => fence = Some(mark),
                Some(open) if open == mark => fence = None,
                Some(_) => {}
            }
            continue;
        }
        if fence.is_none() {
            let targets = targets(&without_code(line));
            let paths = targets.iter().filter_map(|target| relative_path(target));
            found.extend(paths.map(|path| (index + 1, path.to_owned())));
        }
    }
    found
}

/// Removes the text between backticks.
fn without_code(line: &str) -> String {
    let pieces: Vec<&str> = line.split('`').collect();
    let closed = pieces.len() - (pieces.len() + 1) % 2;
    let outside = pieces.iter().enumerate().filter(|(i, _)| i % 2 == 0 || *i >= closed);
    outside.map(|(_, piece)| *piece).collect::<Vec<_>>().join("`")
}

/// The targets of the links in a line, as written.
fn targets(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (start, _) in line.match_indices("](") {
        if let Some((target, _)) = line[start + 2..].split_once(')') {
            targets.push(target);
        }
    }
    if line.starts_with('[')
        && let Some((label, target)) = line.split_once("]: ")
        && !label.starts_with("[^")
    {
        targets.push(target);
    }
    let first = |target: &str| target.split_whitespace().next().unwrap_or_default().to_owned();
    targets.into_iter().map(first).collect()
}

/// The path of a relative link; `None` for URLs and for fragments of the same file.
fn relative_path(target: &str) -> Option<&str> {
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let scheme = target.split_once(':').is_some_and(|(s, _)| s.chars().all(char::is_alphanumeric));
    let path = target.split('#').next().unwrap_or_default();
    (!scheme && !path.is_empty()).then_some(path)
}

/// `link` in the file at `from`, as a path from the root; `None` if it leaves the tree.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    if !link.starts_with('/') {
        parts.extend(from.split('/'));
        parts.pop();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<usize> {
        let tree =
            SourceTree::of_files(&[("docs/a.md", text), ("docs/format/table.md", ""), ("x", "")]);
        relative_links(&tree).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn links_lead_to_files_and_directories() {
        let good = "[a](format/table.md#place) [b](../x) [c](format/) ![d](/x \"title\")\n\
                    [e](https://example.org/none) [f](#here) [g](mailto:a@b) [h](<../x>)\n\n\
                    [i]: format/table.md\n[^1]: a footnote\n- [ ] a task\n";
        assert!(broken(good).is_empty());
        assert_eq!(
            broken("[a](none.md)\n[b](../../x)\n[c](x) [d](format)\n\n[e]: y\n"),
            [1, 2, 3, 5]
        );
    }

    #[test]
    fn code_holds_no_links() {
        assert!(broken("```\n[a](none)\n```\n`[b](none)` and `c[0](d)`\n").is_empty());
        assert_eq!(broken("a ` alone [b](none)\n~~~\n```\n~~~\n[c](none)\n"), [1, 5]);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Tidy: the style rules that a machine can check, one function each.
//!
//! A rule takes one Rust file or the whole tree and returns its violations. To add a rule, write a
//! function in a file named after its subject, and add a line to [`FILE_RULES`] or [`TREE_RULES`].
//! Invariant: rules only read; only `bless` writes, and only `xtask/long_functions.txt`.

mod attributes;
mod calls;
mod file_length;
mod file_names;
mod foreign_words;
mod function_length;
mod header;
mod layers;
mod links;
mod machine_paths;
mod modules;
mod mutants;
mod names;
mod rust_source;
mod surface;
mod tree;

use std::fmt;
use std::io;

use rust_source::RustSource;
use tree::SourceTree;

/// Rules for one Rust file at a time.
const FILE_RULES: &[fn(&RustSource) -> Vec<StyleProblem>] = &[
    file_length::file_length,
    header::module_header,
    calls::unwrap_outside_tests,
    calls::ambient_time_and_randomness,
    calls::ambient_sources,
    attributes::allow_instead_of_expect,
    attributes::expect_without_reason,
    names::vague_verbs,
    foreign_words::foreign_words,
];

/// Rules for the whole tree.
const TREE_RULES: &[fn(&SourceTree) -> Vec<StyleProblem>] = &[
    file_names::file_names,
    header::licence,
    layers::dependency_direction,
    links::relative_links,
    machine_paths::machine_paths,
    mutants::mutants_apply,
];

/// A violation of a rule, and its location.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StyleProblem {
    path: String,
    line: usize,
    message: String,
}

impl StyleProblem {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for StyleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Prints all violations in the tree; returns true if there are none.
pub fn check() -> io::Result<bool> {
    let tree = SourceTree::of_checkout()?;
    let (sources, mut problems) = parse(&tree);
    for source in &sources {
        problems.extend(FILE_RULES.iter().flat_map(|rule| rule(source)));
    }
    problems.extend(TREE_RULES.iter().flat_map(|rule| rule(&tree)));
    problems.extend(modules::unreachable_modules(&sources));
    problems.extend(names::type_names(&sources));
    problems.extend(surface::public_functions(&sources));
    problems.extend(function_length::function_length(&tree, &sources));
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    println!("tidy: {} files, {} broken rules", tree.files().count(), problems.len());
    Ok(problems.is_empty())
}

/// Shortens the list of long functions; returns true if no violation of that rule remains.
pub fn bless() -> io::Result<bool> {
    let tree = SourceTree::of_checkout()?;
    let (sources, mut problems) = parse(&tree);
    let list = function_length::shrink(&tree, &sources);
    std::fs::write(tree.root().join(function_length::LIST_PATH), list)?;
    problems.extend(function_length::function_length(&SourceTree::of_checkout()?, &sources));
    for problem in &problems {
        println!("{problem}");
    }
    Ok(problems.is_empty())
}

fn parse(tree: &SourceTree) -> (Vec<RustSource>, Vec<StyleProblem>) {
    let mut sources = Vec::new();
    let mut problems = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".rs")) {
        match RustSource::parse(path, text) {
            Ok(source) => sources.push(source),
            Err(line) => problems.push(StyleProblem::new(path, line, "is not Rust")),
        }
    }
    (sources, problems)
}

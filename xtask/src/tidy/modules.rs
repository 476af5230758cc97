// SPDX-License-Identifier: Apache-2.0
//! Modules: a file under `src` that no `mod` line names is never compiled, and is refused.

use std::collections::BTreeMap;

use super::StyleProblem;
use super::rust_source::RustSource;

/// Files with which cargo, or a build script in a directory below, starts a build.
const ROOTS: &[&str] = &["lib", "main"];

/// Checks that every file under a `src` is a root or declared by the module above it.
pub fn unreachable_modules(sources: &[RustSource]) -> Vec<StyleProblem> {
    let by_path: BTreeMap<&str, &RustSource> =
        sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let mut problems = Vec::new();
    for source in sources {
        let Some((parents, name)) = parents(&source.path) else { continue };
        let declared = parents
            .iter()
            .filter_map(|parent| by_path.get(parent.as_str()))
            .any(|parent| parent.find(&["mod", &name, ";"]).next().is_some());
        if !declared {
            let message = format!("no `mod {name};` declares it: it is never compiled");
            problems.push(StyleProblem::new(&source.path, 1, message));
        }
    }
    problems
}

/// The files that could declare the module at `path`, and its name; `None` for a root.
fn parents(path: &str) -> Option<(Vec<String>, String)> {
    let (_, below_src) = path.split_once("/src/")?;
    if below_src.starts_with("bin/") {
        return None;
    }
    let (directory, file) = path.rsplit_once('/')?;
    let stem = file.strip_suffix(".rs")?;
    let (directory, name) =
        if stem == "mod" { directory.rsplit_once('/')? } else { (directory, stem) };
    if ROOTS.contains(&name) {
        return None;
    }
    if directory.ends_with("/src") {
        let roots = ROOTS.iter().map(|root| format!("{directory}/{root}.rs")).collect();
        return Some((roots, name.into()));
    }
    Some((vec![format!("{directory}.rs"), format!("{directory}/mod.rs")], name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_declared_by_the_module_above() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; pub mod c;"),
            ("crates/a/src/b.rs", "mod d;"),
            ("crates/a/src/b/d.rs", ""),
            ("crates/a/src/b/lost.rs", ""),
            ("crates/a/src/c/mod.rs", "mod tests;"),
            ("crates/a/src/c/tests.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/src/orphan.rs", "// mod orphan;"),
            ("crates/a/tests/topic.rs", ""),
        ];
        let sources: Vec<RustSource> =
            files.iter().map(|(path, text)| RustSource::parse(path, text).expect("Rust")).collect();
        let paths: Vec<String> =
            unreachable_modules(&sources).into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["crates/a/src/b/lost.rs", "crates/a/src/orphan.rs"]);
    }
}

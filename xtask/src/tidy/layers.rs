// SPDX-License-Identifier: Apache-2.0
//! Layers: dependencies between crates point one way, and lower crates know nothing of kernels or
//! networks.
//!
//! The order of [`LAYERS`] is that of the map in ARCHITECTURE.md; every kind of dependency counts,
//! including those of tests and build scripts.

use super::StyleProblem;
use super::tree::SourceTree;

/// The allowed dependencies of each crate, lowest crate first.
const LAYERS: &[(&str, &[&str])] = &[
    ("esker-base", &[]),
    ("esker-table", &["esker-base"]),
    ("esker-extent", &["esker-table", "esker-base"]),
    ("esker-comm", &["esker-base"]),
    ("esker-fs", &["esker-extent", "esker-table", "esker-base"]),
    ("esker-sim", &["esker-fs", "esker-table", "esker-base"]),
    ("esker-imd", &["esker-comm", "esker-fs", "esker-table", "esker-base"]),
    ("esker-shared", &["esker-comm", "esker-fs", "esker-extent", "esker-table", "esker-base"]),
    ("esker-live", &["esker-fs", "esker-table", "esker-base"]),
    (
        "esker",
        &[
            "esker-live",
            "esker-shared",
            "esker-imd",
            "esker-comm",
            "esker-fs",
            "esker-table",
            "esker-base",
        ],
    ),
    ("esker-preload", &["esker-base"]),
    ("esker-capture", &["esker-preload", "esker-base"]),
    ("esker-trap", &["esker-preload", "esker-fs", "esker-table", "esker-base"]),
    ("esker-fuse-ring", &[]),
    (
        "esker-fuse",
        &[
            "esker-fuse-ring",
            "esker-live",
            "esker-imd",
            "esker-fs",
            "esker-comm",
            "esker-extent",
            "esker-table",
            "esker-base",
        ],
    ),
    (
        "esker-bench",
        &[
            "esker-live",
            "esker-fuse",
            "esker-imd",
            "esker-shared",
            "esker-fs",
            "esker-comm",
            "esker-extent",
            "esker-table",
            "esker-base",
        ],
    ),
    (
        "esker-workbench",
        &["esker-imd", "esker-shared", "esker-fs", "esker-comm", "esker-table", "esker-base"],
    ),
    (
        "esker-advisor",
        &[
            "esker-capture",
            "esker-workbench",
            "esker-imd",
            "esker-shared",
            "esker-fs",
            "esker-comm",
            "esker-table",
            "esker-base",
        ],
    ),
    (
        "esker-cli",
        &[
            "esker-live",
            "esker-trap",
            "esker-capture",
            "esker-preload",
            "esker-advisor",
            "esker-workbench",
            "esker-bench",
            "esker-fuse",
            "esker-imd",
            "esker-shared",
            "esker-fs",
            "esker-comm",
            "esker-table",
            "esker-base",
        ],
    ),
];

/// Packages that a crate must not depend on: `table` and `fs` know nothing of FUSE or the network.
const FOREIGN: &[(&str, &[&str])] = &[
    ("esker-table", &["fuser", "tokio", "tonic", "object_store"]),
    ("esker-fs", &["fuser", "tokio", "tonic", "object_store"]),
];

/// Checks that every crate is in a layer, and depends only on lower ones.
pub fn dependency_direction(tree: &SourceTree) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    for (path, text) in tree.files() {
        if !(path.starts_with("crates/") && path.ends_with("/Cargo.toml")) {
            continue;
        }
        let (package, dependencies) = parse_manifest(text);
        let Some((_, permitted)) = LAYERS.iter().find(|(name, _)| *name == package) else {
            let message = format!("`{package}` is in no layer: add it to xtask/src/tidy/layers.rs");
            problems.push(StyleProblem::new(path, 1, message));
            continue;
        };
        let foreign = FOREIGN.iter().find(|(name, _)| *name == package).map_or(&[][..], |f| f.1);
        for (line, dependency) in dependencies {
            let ours = dependency.starts_with("esker-") && dependency != package;
            if ours && !permitted.contains(&dependency) || foreign.contains(&dependency) {
                let message = format!("`{package}` must not depend on `{dependency}`");
                problems.push(StyleProblem::new(path, line, message));
            }
        }
    }
    problems
}

/// The package's name, and its dependencies of every kind with their line numbers.
fn parse_manifest(text: &str) -> (&str, Vec<(usize, &str)>) {
    let mut section = "";
    let mut package = "";
    let mut dependencies = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.split(']').next().unwrap_or_default();
            // `[dependencies.name]`
            if let Some((_, name)) = section.split_once("dependencies.") {
                dependencies.push((index + 1, name.trim_matches('"')));
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        // `name.workspace = true` and `name = "1"`
        let name = key.trim().split('.').next().unwrap_or_default().trim_matches('"');
        if section == "package" && name == "name" {
            package = value.trim().trim_matches('"');
        } else if section.ends_with("dependencies") && !name.starts_with('#') {
            dependencies.push((index + 1, name));
        }
    }
    (package, dependencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(manifest: &str) -> Vec<usize> {
        let tree = SourceTree::of_files(&[("crates/x/Cargo.toml", manifest)]);
        dependency_direction(&tree).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn dependencies_point_down() {
        let up = "[package]\nname = \"esker-table\"\n[dependencies]\nesker-base.workspace = true\n\
                  esker-fs.workspace = true\n";
        assert_eq!(lines(up), [5]);
    }

    #[test]
    fn every_kind_of_dependency_counts() {
        let up = "[package]\nname = \"esker-fs\"\n[dev-dependencies]\nesker-cli = { path = \"\" }\n\
                  [target.'cfg(unix)'.dependencies]\nfuser = \"0.18\"\n[dependencies.tokio]\n\
                  version = \"1\"\n# tokio = \"1\"\n[lints]\nworkspace = true\n";
        assert_eq!(lines(up), [4, 6, 7]);
    }

    #[test]
    fn a_crate_without_a_layer_is_a_problem() {
        assert_eq!(lines("[package]\nname = \"esker-new\"\n"), [1]);
    }

    #[test]
    fn layers_are_ordered_and_know_each_other() {
        for (place, (name, permitted)) in LAYERS.iter().enumerate() {
            let lower: Vec<&str> = LAYERS[..place].iter().map(|layer| layer.0).collect();
            assert!(permitted.iter().all(|below| lower.contains(below)), "{name}");
        }
    }
}

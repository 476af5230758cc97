// SPDX-License-Identifier: Apache-2.0
//! Tree: the paths and texts of all files that are in version control or about to be added.
//!
//! Invariants: (1) paths are relative to the root, with `/` between components; (2) ignored files
//! are absent; (3) binary files have a path and an empty text.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of a checkout.
pub struct SourceTree {
    root: PathBuf,
    files: BTreeMap<String, String>,
    directories: BTreeSet<String>,
}

impl SourceTree {
    /// Reads the checkout that holds the current directory.
    pub fn of_checkout() -> io::Result<Self> {
        let top = git(Path::new("."), &["rev-parse", "--show-toplevel"])?;
        let root = PathBuf::from(top.trim_end());
        let listing =
            git(&root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        let mut files = BTreeMap::new();
        for path in listing.split('\0').filter(|path| !path.is_empty()) {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => {
                    files.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default())
                }
                // Removed but not yet committed, a link to a directory, or gone since the listing.
                Err(_) => continue,
            };
        }
        Ok(Self::new(root, files))
    }

    fn new(root: PathBuf, files: BTreeMap<String, String>) -> Self {
        let mut directories = BTreeSet::from([String::new()]);
        for path in files.keys() {
            directories.extend(path.match_indices('/').map(|(end, _)| path[..end].to_owned()));
        }
        Self { root, files, directories }
    }

    /// The root of the checkout.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every path with its text, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text of the file at `path`.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns whether `path` is a file or a directory of the tree.
    pub fn holds(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.directories.contains(path)
    }
}

fn git(directory: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("git").arg("-C").arg(directory).args(arguments).output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("git {}: {message}", arguments.join(" "))));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

#[cfg(test)]
impl SourceTree {
    /// A tree that exists only here.
    pub fn of_files(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
        Self::new(PathBuf::new(), files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_files_and_the_directories_above_them() {
        let tree = SourceTree::of_files(&[("docs/format/table.md", "")]);
        assert!(["", "docs", "docs/format", "docs/format/table.md"].iter().all(|p| tree.holds(p)));
        assert!(!tree.holds("docs/form"));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Records the commit and the features of the build (`ESKER_BUILD`).

use std::process::Command;

fn main() {
    let features: Vec<&str> = [
        ("CARGO_FEATURE_S3", "s3"),
        ("CARGO_FEATURE_POSTGRESQL", "postgresql"),
        ("CARGO_FEATURE_MONGODB", "mongodb"),
        ("CARGO_FEATURE_REDIS", "redis"),
        ("CARGO_FEATURE_MPI", "mpi"),
    ]
    .into_iter()
    .filter(|(variable, _)| std::env::var_os(variable).is_some())
    .map(|(_, feature)| feature)
    .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let build = match commit() {
        Some(commit) => format!(" (commit {commit}; features: {features})"),
        None => format!(" (features: {features})"),
    };
    println!("cargo::rustc-env=ESKER_BUILD={build}");
    // A commit moves the branch, a checkout the head; a packaged source has neither.
    for path in ["../../.git/HEAD", "../../.git/logs/HEAD"] {
        if std::path::Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// The commit of the checkout, if this is one and git is installed.
fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !commit.trim().is_empty()).then(|| commit.trim().to_owned())
}

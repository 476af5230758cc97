// SPDX-License-Identifier: Apache-2.0
//! Compile: makes a library of one source file, for build scripts.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Libraries have a few instructions for these machines only.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name} of Cargo: {error}"))
}

/// Compiles `source`, a crate root without the standard library, and the modules below its directory to
/// `OUT_DIR/lib<name>.so`, with the condition `name`; an empty file on machines that it is not made for. Only
/// for build scripts.
///
/// # Panics
/// If the library does not compile.
pub fn compile(source: &str, name: &str, link_arguments: &[&str]) {
    let directory = source.rsplit_once('/').map_or(".", |(directory, _)| directory);
    println!("cargo::rerun-if-changed={directory}");
    println!("cargo::rustc-check-cfg=cfg({name})");
    let library = PathBuf::from(variable("OUT_DIR")).join(format!("lib{name}.so"));
    if !MACHINES.contains(&&*variable("CARGO_CFG_TARGET_ARCH")) {
        std::fs::write(&library, []).expect("write to the build directory");
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-name", name, "--crate-type", "cdylib"]);
    rustc.args(["--target", &variable("TARGET"), "--cfg", name, "--cap-lints", "allow"]);
    for option in [
        "opt-level=3",
        "panic=abort",
        "lto=fat",
        "codegen-units=1",
        "force-unwind-tables=no",
        "strip=debuginfo",
        "link-arg=-nostartfiles",
        "link-arg=-nostdlib",
    ] {
        rustc.args(["-C", option]);
    }
    for argument in link_arguments {
        rustc.args(["-C", &format!("link-arg={argument}")]);
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let status = rustc.arg("-o").arg(&library).arg(source).status().expect("run the compiler");
    assert!(status.success(), "{source} does not compile: {status}");
}

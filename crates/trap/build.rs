// SPDX-License-Identifier: Apache-2.0
//! Compiles the library that programs preload, which this crate contains: so that it is wherever
//! the command is.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/preload/main.rs";

/// The library needs no C library, only one of these machines and its linker.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name} of Cargo: {error}"))
}

fn main() {
    println!("cargo::rerun-if-changed=src/preload");
    println!("cargo::rustc-check-cfg=cfg(esker_preload)");
    let library = PathBuf::from(variable("OUT_DIR")).join("libesker_preload.so");
    if !MACHINES.contains(&&*variable("CARGO_CFG_TARGET_ARCH")) {
        // Without a library programs are only slower.
        std::fs::write(&library, []).expect("write to the build directory");
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-name", "esker_preload", "--crate-type", "cdylib"]);
    rustc.args(["--target", &variable("TARGET"), "--cfg", "esker_preload", "--cap-lints", "allow"]);
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
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let status = rustc.arg("-o").arg(&library).arg(SOURCE).status().expect("run the compiler");
    assert!(status.success(), "{SOURCE} does not compile: {status}");
}

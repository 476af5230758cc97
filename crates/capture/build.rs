// SPDX-License-Identifier: Apache-2.0
//! Compiles the library that programs preload, which this crate contains.

fn main() {
    // Before glibc 2.34 some functions that the library needs are in libraries of their own, which later
    // versions still have, and musl knows by name.
    let is_gnu =
        std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu");
    let libraries = ["-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0"];
    let arguments: &[&str] = if is_gnu { &libraries } else { &[] };
    esker_preload::compile("src/library/main.rs", "esker_capture", arguments);
}

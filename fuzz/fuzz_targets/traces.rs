// SPDX-License-Identifier: Apache-2.0
//! Fuzz target: `esker_fuzz::traces` under coverage guidance.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| esker_fuzz::traces::run(bytes));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run this with `cargo +nightly fuzz run traces`, or `cargo test` for a bounded run");
    std::process::exit(2);
}

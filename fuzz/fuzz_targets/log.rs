// SPDX-License-Identifier: Apache-2.0
//! Fuzz target: `esker_fuzz::log` under coverage guidance.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| esker_fuzz::log::run(bytes));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run this with `cargo +nightly fuzz run log`, or `cargo test` for a bounded run");
    std::process::exit(2);
}

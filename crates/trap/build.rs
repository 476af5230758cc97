// SPDX-License-Identifier: Apache-2.0
//! Compiles the library that programs preload, which this crate contains.

fn main() {
    // It needs no other library, so that it loads into programs of any C library.
    esker_preload::compile("src/preload/main.rs", "esker_preload", &[]);
}

// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets: one module each, named after its subject, with a function `run` that takes
//! arbitrary bytes.
//!
//! `run` takes its bytes either as an object to decode, or as choices: of an object to encode, and
//! of changes to it before decoding. Checksums are recomputed after changes, as a hostile writer
//! would do; otherwise the code behind the checks would never be reached. A target fails by a
//! panic. `cargo +nightly fuzz run TARGET` runs it under coverage guidance, `cargo test` on random
//! bytes for a bounded time (`campaign`).

pub mod auxiliary;
pub mod block;
mod choices;
pub mod log;
pub mod manifest;
pub mod messages;
mod records;
pub mod segments;
pub mod stores;
pub mod table;
pub mod traces;

#[cfg(test)]
mod campaign;

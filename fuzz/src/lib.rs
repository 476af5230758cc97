//! Fuzz targets: one module each, named after its subject, with a function `run` of any bytes.
//!
//! `run` takes its bytes either as an object to decode or as choices: of what to encode, and then
//! of what to change in it before decoding. Checksums are put right again, since a hostile writer
//! would; without that nothing behind them would ever be reached. A target fails by a panic.
//! `cargo +nightly fuzz run TARGET` calls it under coverage guidance, `cargo test` on random bytes
//! for a bounded time (`campaign`).

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

#[cfg(test)]
mod campaign;

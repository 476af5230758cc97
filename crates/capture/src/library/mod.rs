// SPDX-License-Identifier: Apache-2.0
//! The library that programs preload, as this crate contains it: its bytes, and the layouts that both know.

pub(crate) mod call_slot;
#[cfg(test)]
mod descriptors;
#[cfg(test)]
#[expect(dead_code, reason = "programs call them, not tests")]
mod hooks;
#[cfg(test)]
mod kernel;
#[cfg(test)]
mod log_writer;
#[cfg(test)]
mod next_function;
#[cfg(test)]
mod recorded;
pub(crate) mod settings;
#[cfg(test)]
mod streams;

/// The library, with blank settings; empty on machines that it is not made for.
pub(crate) const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libesker_capture.so"));

// SPDX-License-Identifier: Apache-2.0
//! Libraries that programs load before their own (`LD_PRELOAD`).
//!
//! A crate with such a library compiles it in its build script ([`compile`]) and contains its bytes, so that
//! the library is wherever the command is. Each run writes a copy with its own settings
//! (`PreloadLibrary`).

mod compile;
#[cfg(feature = "write")]
mod preload_library;

pub use compile::compile;
#[cfg(feature = "write")]
pub use preload_library::{PreloadLibrary, preload_variable};

// SPDX-License-Identifier: Apache-2.0
//! Base: the services that the other crates take as arguments so that tests can replace them:
//! object stores, append logs, time, randomness. Also the encodings and hashes of integers, and the
//! filters, that several formats share.
//!
//! Nothing here knows about tables, files or namespaces.

pub mod clock;
mod error;
pub mod fuse_filter;
pub mod mapped_file;
pub mod memory;
pub mod mounts;
pub mod packed_bits;
pub mod process;
pub mod random;
mod shell_word;
pub mod store;
mod url_password;
pub mod wire;
pub mod word_hash;

pub use bytes::Bytes;
pub use clock::Clock;
pub use error::{Error, Kind, Result};
pub use process::ProcessIdentity;
pub use random::Random;
pub use shell_word::shell_word;
pub use store::Store;
pub use url_password::without_password;

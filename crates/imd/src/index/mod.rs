// SPDX-License-Identifier: Apache-2.0
//! Index log: the metadata that a partition's reader needs before it reads rows.
//! Layout: docs/format/imd.md, "Index log".
//!
//! ```text
//! head | schema | index groups of epoch 0 | epoch 0 | index groups of epoch 1 | epoch 1 | …
//!      | copies | root | footer
//! ```

pub mod epoch;
pub mod frame;
pub mod head;
pub mod root;

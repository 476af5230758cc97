//! Indexed massive directories: a parallel job appends (key, value) pairs from every rank, and one
//! core finds a key's values afterwards without scanning.
//!
//! Keys are mapped to partitions by hash ([`hash`]); each partition is sorted and indexed while it
//! is written, in one pass.
//! Source: DeltaFS thesis, chapter 5.

pub mod auxiliary;
pub mod hash;
pub mod import;

//! Writing: every rank appends, each record finds its partition.
//!
//! | format | what moves to the key's partition | what stays with the rank |
//! |---|---|---|
//! | base | key and value | |
//! | pointer | key and the value's place | values, in the order of appends |
//! | lossy, static | the key's hash | records, as a partition of their own; the hash's rank is kept |
//! | ordered | key and value, by the key's range | |
//!
//! Rank and partition are one: rank r writes partition r.
//! Concurrency: collective calls ([`Imd::create`], [`Imd::epoch_flush`], [`Imd::finish`]) are made by
//! all ranks in the same order; [`Imd::append`] by any at any time.
//! Source: DeltaFS thesis §5.2.2, §5.3.2 and §5.3.3.

mod bounds;
mod imd;
mod values;

pub use imd::{Imd, Options, Summary};
pub(crate) use values::pages_of;
pub use values::{LONG_POINTER_BYTES, PAGE_BYTES, PAGE_VALUE_BYTES, POINTER_BYTES, Pointer};

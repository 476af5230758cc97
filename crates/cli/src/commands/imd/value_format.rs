// SPDX-License-Identifier: Apache-2.0
//! Value format: how the readers of an indexed directory reach values, as an option.

use clap::ValueEnum;
use esker_imd::ValueFormat;

/// How readers reach values.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum ValueFormatName {
    /// Records move to their key's partition
    #[default]
    Base,
    /// Values stay; keys and pointers to the values move
    Pointer,
    /// Records stay; the rank of a key is known approximately
    Lossy,
    /// Records stay; the rank of a key is known exactly
    Static,
    /// Records move to the partition of their key's range
    Ordered,
}

impl ValueFormatName {
    /// The format.
    pub const fn format(self) -> ValueFormat {
        match self {
            Self::Base => ValueFormat::Base,
            Self::Pointer => ValueFormat::Pointer,
            Self::Lossy => ValueFormat::Lossy,
            Self::Static => ValueFormat::Static,
            Self::Ordered => ValueFormat::Ordered,
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Identity of a log: its set, its number in that set, and its name in the store.

use crate::manifest::SetId;

/// A write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId {
    /// The set whose operations it holds.
    pub set: SetId,
    /// Its number there; the high half is the writer's epoch.
    pub number: u64,
}

impl LogId {
    /// The folder of a set's logs.
    #[must_use]
    pub(crate) fn folder(set: SetId) -> String {
        format!("set/{set}/wal/")
    }

    /// The log's name in the store.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{:08x}-{:08x}", Self::folder(self.set), self.number >> 32, self.number as u32)
    }

    /// Returns the log of `set` that is named `name` in its folder, if `name` is a log's.
    #[must_use]
    pub fn parse(set: SetId, name: &str) -> Option<Self> {
        let (epoch, count) = name.split_once('-')?;
        let part =
            |text: &str| (text.len() == 8).then(|| u32::from_str_radix(text, 16).ok()).flatten();
        let number = u64::from(part(epoch)?) << 32 | u64::from(part(count)?);
        Some(Self { set, number })
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Identity of a log: its set and its number in that set.

use crate::manifest::SetId;
use crate::object_name::ObjectName;

/// A write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId {
    /// The set whose operations it holds.
    pub set: SetId,
    /// Its number there; the high half is the writer's epoch.
    pub number: u64,
}

impl LogId {
    /// The log's name in the store.
    #[must_use]
    pub(crate) fn name(&self) -> String {
        ObjectName::Log(self.set, self.number).to_string()
    }
}

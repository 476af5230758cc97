// SPDX-License-Identifier: Apache-2.0
//! File log: a data log for the bytes of one open file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_base::store::AppendLog;

use super::LOG_BYTES;

/// A log for the bytes of one open file. Dropping its last clone closes it.
#[derive(Clone)]
pub(crate) struct FileLog(Arc<OpenLog>);

/// State shared by the clones of a [`FileLog`].
pub(super) struct OpenLog {
    pub(super) number: u64,
    pub(super) log: Arc<dyn AppendLog>,
    /// True if the file's writer writes the log's file directly and nothing is appended.
    pub(super) is_in_place: bool,
    /// True once nothing may be appended any more.
    is_ended: AtomicBool,
}

impl std::fmt::Debug for FileLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileLog").field("number", &self.0.number).finish()
    }
}

impl FileLog {
    pub(super) fn new(number: u64, log: Arc<dyn AppendLog>, is_in_place: bool) -> Self {
        Self(Arc::new(OpenLog { number, log, is_in_place, is_ended: AtomicBool::new(false) }))
    }

    /// Number among the logs of its set.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// True if the next bytes of the file go to another log.
    pub(crate) fn is_ended(&self) -> bool {
        self.0.is_ended() || self.0.log.bytes() >= LOG_BYTES
    }

    pub(super) fn open_log(&self) -> &Arc<OpenLog> {
        &self.0
    }

    pub(super) fn log(&self) -> &Arc<dyn AppendLog> {
        &self.0.log
    }
}

impl OpenLog {
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
    }
}

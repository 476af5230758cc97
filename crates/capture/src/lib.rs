// SPDX-License-Identifier: Apache-2.0
//! Records the calls that unmodified programs make on files.
//!
//! Programs load a small library (`src/library`) before their own. Its functions take the place of those of the C library
//! that name, open, read, write and change files, and write each call into a log, in memory that all programs of
//! a recording share with the recorder. A call costs a fraction of a microsecond more, and a program that is
//! killed loses at most the call that it was in. [`CallRecorder`] begins and ends a recording, and
//! [`CallLog`] reads it.
//!
//! Not recorded: files in memory (`mmap`), `io_uring`, programs that make system calls themselves or do not load the
//! library (static or set-user-id ones), calls that the C library makes for itself, such as those of
//! `scandir`, and, with other C libraries than GNU's, what is read and written by streams.

mod call_log;
mod call_recorder;
mod library;

pub use call_log::{CallLog, RecordedCall, RecordedEvent, RecordedProcess};
pub use call_recorder::CallRecorder;
pub use library::call_slot::operation;

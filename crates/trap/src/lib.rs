// SPDX-License-Identifier: Apache-2.0
//! Shows a snapshot or a session to unmodified programs without a mount: a supervisor answers their
//! system calls that name files (seccomp user notification).
//!
//! The path of a call: [`filter`] makes the kernel suspend a thread that enters one of the calls
//! that name files, [`listener`] receives it, [`supervisor`] hands it to one of [`calls`], which
//! reads the arguments in the memory of the [`caller`], follows paths ([`resolve`]), and answers.
//! Calls about other files continue in the kernel.
//!
//! Programs get real descriptors. A file that is open is a file of the [`spool`], which is written
//! back to the session once a writer has closed it. A directory that is open, or that is the
//! working directory of a process, is a real, empty directory below the shown place ([`skeleton`]),
//! so that the kernel keeps working directories, and resolves `..` and paths that lead out.
//!
//! Invariant: while a file is in the spool, the spool has its content, and the session has
//! everything else about it.

mod attributes;
mod caller;
mod calls;
mod filter;
mod identities;
mod listener;
mod listing;
mod outside;
mod preload;
mod resolve;
mod skeleton;
mod spool;
mod spooled_file;
mod supervisor;
mod trial;

pub use filter::is_available;
pub use supervisor::{TrapOptions, run};
pub use trial::try_program;

// SPDX-License-Identifier: Apache-2.0
//! Retention: which change sets are kept, and the deletion of all others.
//!
//! A set is kept while it has a marker (`marker`): of a session or of a process that reopens it, of
//! a name, also a former one or that of a live namespace, of a set that needs it (`dependency`), or
//! of a long-running reader (`read_lease`). A marker of a set that needs only data logs keeps those.
//! The garbage collector (`gc`) condemns a set without markers (`condemn`) before it deletes the
//! objects of the set. A process that puts a marker meanwhile either keeps the set or learns that it
//! is gone.
//! Decisions: docs/design/0002-garbage.md.

pub(crate) mod condemn;
pub(crate) mod dependency;
pub mod gc;
pub mod marker;
pub(crate) mod provisional_markers;
pub mod read_lease;
pub(crate) mod session_marker;

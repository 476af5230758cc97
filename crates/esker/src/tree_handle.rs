// SPDX-License-Identifier: Apache-2.0
//! Tree handle: the snapshot or session to which a handle belongs; its end when the last handle is
//! dropped.
//!
//! Invariants: (1) a tree outlives every directory and file that was opened in it; (2) a private
//! session, which no process can resume, is given up when its last handle is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_base::{Error, Kind, Result};
use esker_fs::repository::Repository as SetRepository;
use esker_fs::retention::read_lease::ReadLease;
use esker_fs::session::Session as Writer;
use esker_fs::stack::namespace::Namespace as Layers;
use parking_lot::Mutex;

/// The tree of a directory or file.
#[derive(Clone, Debug)]
pub(crate) enum TreeHandle {
    Snapshot(Arc<SnapshotTree>),
    Session(Arc<SessionTree>),
}

/// A stack that is open for reading.
#[derive(Debug)]
pub(crate) struct SnapshotTree {
    pub(crate) layers: Layers,
    /// Keeps the stack from being collected; stops when it is dropped.
    pub(crate) _lease: ReadLease,
    /// The last failure to renew the lease.
    pub(crate) lease_failure: Arc<Mutex<Option<Error>>>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct SessionTree {
    pub(crate) writer: Arc<Writer>,
    pub(crate) repository: SetRepository,
    /// True if the session is to be given up when its last handle is dropped.
    is_private: AtomicBool,
}

impl TreeHandle {
    pub(crate) fn layers(&self) -> &Layers {
        match self {
            Self::Snapshot(tree) => &tree.layers,
            Self::Session(tree) => tree.writer.namespace(),
        }
    }

    /// The session, for a change.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        match self {
            Self::Session(tree) => Ok(&tree.writer),
            Self::Snapshot(_) => {
                let what = "a snapshot never changes: begin a session on top of it";
                Err(Error::new(Kind::ReadOnly, what))
            }
        }
    }
}

impl SessionTree {
    pub(crate) fn new(writer: Arc<Writer>, repository: SetRepository, is_private: bool) -> Self {
        Self { writer, repository, is_private: AtomicBool::new(is_private) }
    }

    pub(crate) fn is_private(&self) -> bool {
        self.is_private.load(Ordering::Acquire)
    }

    /// Leaves the session's change set as it is when the last handle is dropped.
    pub(crate) fn keep(&self) {
        self.is_private.store(false, Ordering::Release);
    }
}

impl Drop for SessionTree {
    fn drop(&mut self) {
        if self.is_private() {
            // Best effort: the next collection gives up sessions that a dead process has left.
            drop(self.repository.abandon_session(&self.writer));
        }
    }
}

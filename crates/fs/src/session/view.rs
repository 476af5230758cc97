// SPDX-License-Identifier: Apache-2.0
//! View: the namespace that a front end shows to programs: an immutable snapshot, or a session that
//! takes writes.

use std::sync::Arc;

use crate::session::Session;
use crate::stack::namespace::Namespace;

/// A snapshot or a session that programs use through a front end.
#[derive(Clone, Debug)]
pub enum NamespaceView {
    /// A stack of published change sets, read-only.
    Snapshot(Arc<Namespace>),
    /// A session on top of such a stack.
    Session(Arc<Session>),
}

impl NamespaceView {
    /// The namespace, for reads.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        match self {
            Self::Snapshot(namespace) => namespace,
            Self::Session(session) => session.namespace(),
        }
    }

    /// The session, if the view is writable.
    #[must_use]
    pub fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Snapshot(_) => None,
            Self::Session(session) => Some(session),
        }
    }
}

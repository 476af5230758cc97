// SPDX-License-Identifier: Apache-2.0
//! View: the contents of a mount, an immutable snapshot or a writable session.

use std::ops::Deref;
use std::sync::Arc;

use esker_fs::namespace::Namespace;
use esker_fs::session::Session;

/// The contents of a mount. Its identity must be the superuser's, since the kernel has checked
/// permissions.
#[derive(Clone, Debug)]
pub enum MountedView {
    /// A stack of published change sets, read-only.
    Snapshot(Arc<Namespace>),
    /// A session on top of such a stack.
    Session(Arc<Session>),
}

impl Deref for MountedView {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        match self {
            Self::Snapshot(namespace) => namespace,
            Self::Session(session) => session,
        }
    }
}

impl MountedView {
    /// The session, if the view is writable.
    #[must_use]
    pub fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Snapshot(_) => None,
            Self::Session(session) => Some(session),
        }
    }
}

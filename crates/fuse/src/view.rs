//! View: what is mounted, a snapshot that never changes or a session that takes changes.

use std::ops::Deref;
use std::sync::Arc;

use esker_fs::namespace::Namespace;
use esker_fs::session::Session;

/// What is mounted. Its identity must be the superuser's: the kernel has checked permissions.
#[derive(Clone, Debug)]
pub enum View {
    /// A stack of published change sets, which can only be read.
    Snapshot(Arc<Namespace>),
    /// A session on top of such a stack.
    Session(Arc<Session>),
}

impl Deref for View {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        match self {
            Self::Snapshot(namespace) => namespace,
            Self::Session(session) => session,
        }
    }
}

impl View {
    /// The session, if changes are possible.
    #[must_use]
    pub fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Snapshot(_) => None,
            Self::Session(session) => Some(session),
        }
    }
}

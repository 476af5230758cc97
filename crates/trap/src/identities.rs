// SPDX-License-Identifier: Apache-2.0
//! Identities: the shown namespace, accessed as the user of each caller.

use std::sync::Arc;

use esker_fs::session::view::NamespaceView;
use esker_fs::stack::identity::Identity;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::caller::Caller;

/// Users whose views are kept.
const VIEWS_MAX: usize = 64;

/// Views of one namespace for several users.
#[derive(Debug)]
pub(crate) struct Identities {
    /// The namespace for a superuser.
    superuser: NamespaceView,
    /// The only user whom callers can be, unless the supervisor is a superuser: no process gains
    /// privileges under a filter.
    only: Option<NamespaceView>,
    known: Mutex<Vec<(Identity, NamespaceView)>>,
}

impl Identities {
    pub(crate) fn new(view: &NamespaceView) -> Self {
        let own = Identity::of_process();
        let only = (!own.is_root()).then(|| acting_as(view, own));
        Self { superuser: acting_as(view, Identity::root()), only, known: Mutex::default() }
    }

    /// The namespace for a superuser.
    pub(crate) fn superuser(&self) -> &NamespaceView {
        &self.superuser
    }

    /// The user who started `caller`, even if it has changed to another user since.
    pub(crate) fn real_of(&self, caller: Caller) -> Result<Identity, Errno> {
        match &self.only {
            Some(only) => Ok(only.namespace().identity().clone()),
            None => Ok(caller.status()?.real_identity),
        }
    }

    /// The namespace for the user of `caller`.
    pub(crate) fn of(&self, caller: Caller) -> Result<NamespaceView, Errno> {
        if let Some(only) = &self.only {
            return Ok(only.clone());
        }
        let identity = caller.status()?.identity;
        let mut known = self.known.lock();
        if let Some((_, view)) = known.iter().find(|(user, _)| *user == identity) {
            return Ok(view.clone());
        }
        let view = acting_as(&self.superuser, identity.clone());
        if known.len() == VIEWS_MAX {
            known.remove(0);
        }
        known.push((identity, view.clone()));
        Ok(view)
    }
}

fn acting_as(view: &NamespaceView, identity: Identity) -> NamespaceView {
    match view {
        NamespaceView::Snapshot(namespace) => {
            NamespaceView::Snapshot(Arc::new(namespace.acting_as(identity)))
        }
        NamespaceView::Session(session) => {
            NamespaceView::Session(Arc::new(session.acting_as(identity)))
        }
    }
}

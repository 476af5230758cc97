// SPDX-License-Identifier: Apache-2.0
//! Test state: the state of a mount without the mount, for tests of modules.

use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::store::SharedStore;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;

use crate::file::InPlacePolicy;
use crate::mount_state::{MountSetup, MountState};
use esker_fs::session::view::NamespaceView;

/// The state of a mount of a new session in `store`, and the session.
pub(crate) fn state_of_session(store: SharedStore) -> (Arc<MountState>, Arc<Session>) {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let repository = Repository::with(store, 1 << 20, clock.clone());
    let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
    let session = Arc::new(repository.begin(&[], options).expect("begin"));
    (state_of(NamespaceView::Session(session.clone()), clock), session)
}

/// The state of a mount of `view`.
pub(crate) fn state_of(view: NamespaceView, clock: Arc<ManualClock>) -> Arc<MountState> {
    let setup = MountSetup {
        status: Vec::new(),
        clock,
        store: None,
        writes_back: false,
        in_place: InPlacePolicy::Never,
        counts_requests: false,
        stale_names: std::sync::mpsc::channel().0,
        report: Box::new(|error| println!("reported: {error}")),
    };
    Arc::new(MountState::new(view, setup))
}

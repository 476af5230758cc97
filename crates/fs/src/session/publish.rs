// SPDX-License-Identifier: Apache-2.0
//! Publish: completes the change set of a session, and gives a name to it or to a snapshot of it.
//!
//! Before the commit that completes the set, the publisher looks up the name and puts the name's
//! marker, so that no collection comes between; `names/publication.rs` then makes the name refer to
//! the set.

use std::sync::Arc;

use esker_base::Result;
use esker_base::store::concurrent;
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::set_writer::SetWriter;
use esker_table::tree::CloseReasons;
use parking_lot::Mutex;

use crate::names::name_table::SeenPart;
use crate::names::publication::{PendingPublication, publish_held};
use crate::names::{self, IfTaken};
use crate::ops::below_the_root;
use crate::repository::{best_effort, complete_manifest};
use crate::retention::condemn;
use crate::retention::dependency::{self, SetDependency};
use crate::retention::marker::{self, MarkerHolder};
use crate::session::Session;

impl Session {
    /// Completes the change set and publishes it as `name`: everything written so far becomes one
    /// snapshot on which others can build, and survives power loss once this returns. Concurrent
    /// changes wait, and then fail with `Closed`. Cost: a flush, two markers, a commit and the
    /// name, independent of the size of the namespace.
    ///
    /// # Errors
    /// `Exists` if the name is taken: publish it under another name. If the name was taken only
    /// during the call, the session is complete and takes no more changes. `Fenced`; errors of the
    /// store: the call may then be repeated.
    pub fn publish(&self, name: &str) -> Result<SetId> {
        let store = self.namespace().layers().source().store.clone();
        let set = self.set();
        let seen: Arc<Mutex<Option<SeenPart>>> = Arc::default();
        // Before the commit, which proves that no collection has condemned the set.
        let check = {
            let (store, clock, name) = (store.clone(), self.clock().clone(), name.to_owned());
            let seen = seen.clone();
            move || {
                let see = || names::see_free_for(&*store, &*clock, &name, set);
                let hold = || marker::hold(&*store, set, &MarkerHolder::Name(name.clone()));
                *seen.lock() = Some(concurrent::try_join(&*store, see, hold)?.0);
                Ok(())
            }
        };
        let known = match self.complete_if(check)? {
            true => self.tree().manifest(),
            // It was complete before, and a collection may have condemned it.
            false => Arc::new(condemn::load_live(&*store, set)?),
        };
        let publication = PendingPublication {
            set,
            known: &known,
            name,
            if_taken: IfTaken::Refuse,
            seen: seen.lock().take().expect("the name is looked up before the set is complete"),
            was_session: true,
        };
        let publish = || publish_held(&*store, &**self.clock(), publication);
        let delete_logs = || best_effort(self.tree().delete_logs());
        concurrent::try_join(&*store, publish, delete_logs)?;
        Ok(set)
    }

    /// Completes the change set: everything written so far survives power loss once this returns,
    /// and the set is kept until it, its name, or the job of which it is a part is given up
    /// ([`crate::repository::Repository::abandon`]). Concurrent changes wait, and then fail with
    /// `Closed`. Does nothing if the set is already complete.
    ///
    /// # Errors
    /// `Fenced`; `Closed` after a failed write; errors of the store.
    pub fn complete(&self) -> Result<SetId> {
        self.complete_if(|| Ok(()))?;
        best_effort(self.tree().delete_logs())?;
        Ok(self.set())
    }

    /// Like [`Session::complete`] if `check` succeeds, and also calls `check` if the set is already
    /// complete; otherwise the session stays as it is, flushed. Its logs stay. Returns whether the
    /// set was completed by this call, after `check`.
    fn complete_if(&self, check: impl Fn() -> Result<()> + Send + Sync + 'static) -> Result<bool> {
        let set = self.set();
        let is_complete = || self.tree().manifest().state == SetState::Sealed;
        if is_complete() {
            return check().map(|()| false);
        }
        let _shown = self.namespace().files().show();
        self.write_back_metadata()?;
        // A change made between the flush and the commit would be in no table, and in no log that
        // is ever read, although it was acknowledged.
        self.alone(|| {
            if is_complete() {
                // Completed by another thread, for which this one waited.
                return check().map(|()| false);
            }
            let complete = format!(
                "change set {set} is complete and takes no more changes; begin a session on top of \
                 it"
            );
            let in_doubt =
                format!("it is unknown whether change set {set} is complete; publish @{set} again");
            let reasons = CloseReasons { complete, in_doubt };
            self.tree().complete(complete_manifest, check, reasons)?.map(|_| true)
        })
    }

    /// Publishes the session's current state as `name` and continues: the snapshot is a separate
    /// change set that shows this one's tables.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Fenced`, also if a concurrent collection had a grace period
    /// shorter than this took (take the snapshot again); errors of the store.
    pub fn snapshot(&self, name: &str) -> Result<SetId> {
        self.snapshot_with(name, |_, own| Ok(vec![own()?]))
    }

    /// Like [`Session::snapshot`], of several sessions whose records have different keys, those of
    /// the seats of a live namespace. `take` gets the snapshot's set and a function that takes the
    /// part of this session; it returns this part and those that other sessions have taken
    /// ([`Session::snapshot_part`]), this one first.
    ///
    /// # Errors
    /// As [`Session::snapshot`]; errors of `take`.
    pub fn snapshot_with(
        &self,
        name: &str,
        take: impl FnOnce(SetId, &dyn Fn() -> Result<Manifest>) -> Result<Vec<Manifest>>,
    ) -> Result<SetId> {
        let store = self.namespace().layers().source().store.clone();
        let snapshot = self.draw_set_id();
        let seen = names::see_free_for(&*store, &**self.clock(), name, snapshot)?;
        let mut parts = take(snapshot, &|| self.snapshot_part(snapshot))?;
        let mut manifest = parts.remove(0);
        for part in parts {
            add_part(&mut manifest, part);
        }
        // Nothing else holds it: without its name it is garbage.
        marker::hold(&*store, snapshot, &MarkerHolder::Name(name.to_owned()))?;
        manifest.commit(&*store, snapshot, self.clock().now_ns())?;
        let publication = PendingPublication {
            set: snapshot,
            known: &manifest,
            name,
            if_taken: IfTaken::Refuse,
            seen,
            was_session: false,
        };
        publish_held(&*store, &**self.clock(), publication)?;
        Ok(snapshot)
    }

    /// Returns the manifest of a set `snapshot` that shows everything written so far, and holds what
    /// it needs. Cost: a flush, a commit, and a marker for each set that it needs.
    ///
    /// # Errors
    /// `Fenced`; errors of the store.
    pub fn snapshot_part(&self, snapshot: SetId) -> Result<Manifest> {
        let store = self.namespace().layers().source().store.clone();
        let shown = self.namespace().files().show();
        self.write_back_metadata()?;
        let adopting = self.adopting();
        // Held before its tables are listed: a collector that finds one of them obsolete sees this
        // marker, and keeps them until the snapshot has a manifest, or cannot get one any more.
        let needed = dependency::of(snapshot, &self.tree().manifest());
        let hold = |needed: &SetDependency| marker::hold(&*store, needed.set, &needed.holder);
        concurrent::try_map(&*store, &needed, hold)?;
        self.hold_own_set(snapshot)?;
        let own = self.tree().commit(|_| {})?;
        drop((shown, adopting));
        let mut manifest = Manifest::new(own.bases.clone(), self.clock().now_ns());
        manifest.state = SetState::Sealed;
        manifest.last_seq = own.last_seq;
        manifest.tables.clone_from(&own.tables);
        manifest.data_sets.clone_from(&own.data_sets);
        manifest.properties.clone_from(&own.properties);
        manifest.writer = own.writer.clone().map(SetWriter::released);
        self.keep_logs_of(snapshot);
        Ok(manifest)
    }

    /// Marks the session's set as shown by `snapshot`: its data logs stay from now on, and its
    /// tables refer only to existing ones. Waits for a thread that reclaims data logs.
    fn hold_own_set(&self, snapshot: SetId) -> Result<()> {
        let _content = self.pin_data_logs();
        marker::hold(
            &*self.namespace().layers().source().store,
            self.set(),
            &MarkerHolder::Set(snapshot),
        )
    }
}

/// Makes the set of `manifest` show what `part` shows, too, except for records of its root. Their
/// records have different keys.
fn add_part(manifest: &mut Manifest, part: Manifest) {
    let mut tables = below_the_root(&part.tables);
    // Runs are in the order of their numbers, newest first.
    let first_run = tables.iter().map(|table| table.run + 1).max().unwrap_or(0);
    for table in &mut manifest.tables {
        table.run += first_run;
    }
    manifest.tables.append(&mut tables);
    manifest.last_seq = manifest.last_seq.max(part.last_seq);
    manifest.data_sets.extend(part.data_sets);
    manifest.data_sets.sort_unstable();
    manifest.data_sets.dedup();
}

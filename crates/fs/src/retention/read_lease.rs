// SPDX-License-Identifier: Apache-2.0
//! Read leases: markers by which a long-running reader protects change sets, and everything they
//! build on, from collection.
//!
//! A reader puts `reader-<id>-<count>` on each set and puts the next count every [`RENEWAL`]. A
//! collection keeps everything reachable from such markers while one of them is younger than
//! [`LEASE`], regardless of the grace period; after that it sweeps the markers of a dead reader.
//! The marker before the newest stays until the next renewal, so that a concurrent listing sees one
//! of the two. Readers that end within [`LEASE_DELAY`] put no markers: the collections' grace
//! period protects them.
//! Source: docs/design/0007-names.md.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetId;

use crate::repository::Repository;
use crate::retention::condemn;
use crate::retention::marker::{self, MarkerHolder};
use crate::stack::identity::Identity;
use crate::stack::namespace::Namespace;

/// Time for which a reader's marker keeps its set.
pub const LEASE: Duration = Duration::from_secs(900);
/// Interval at which a reader puts another marker.
pub const RENEWAL: Duration = Duration::from_secs(240);
/// A command that takes longer than this puts markers on the sets that it reads.
pub const LEASE_DELAY: Duration = Duration::from_secs(30);
// One renewal may fail or be late.
const _: () = assert!(RENEWAL.as_secs() * 3 < LEASE.as_secs());

/// The markers of one reader.
#[derive(Debug)]
pub struct ReaderMarkers {
    store: SharedStore,
    sets: Vec<SetId>,
    id: u64,
    /// Number of markers put on each set so far.
    count: u32,
}

impl ReaderMarkers {
    /// Puts markers on `sets`; from then on these and everything they build on are kept. Cost: a
    /// write for each set.
    ///
    /// # Errors
    /// `ReadOnly` and `Denied` if the reader may not write to the store; `NoSpace`; other errors of
    /// the store.
    pub fn put(repository: &Repository, sets: &[SetId]) -> Result<Self> {
        let mut markers = Self::unput(repository, sets);
        markers.renew()?;
        Ok(markers)
    }

    /// Markers on `sets` of which none has been put yet.
    fn unput(repository: &Repository, sets: &[SetId]) -> Self {
        let store = repository.store().clone();
        // Half of a newly drawn identity, which no other reader has.
        let id = repository.draw_set_id().0 as u64;
        Self { store, sets: sets.to_vec(), id, count: 0 }
    }

    /// Puts the next markers, on all sets even if one fails. Cost: a write for each set, and a
    /// deletion of an older marker.
    ///
    /// # Errors
    /// The store's error for the first set that fails: its older markers remain valid until they
    /// expire.
    pub fn renew(&mut self) -> Result<()> {
        let (next, old) = (self.holder(self.count), self.count.checked_sub(2));
        // Even after a failure: putting the same marker again does not renew it.
        self.count = self.count.saturating_add(1);
        let mut renewed = Ok(());
        for set in &self.sets {
            match marker::hold(&*self.store, *set, &next) {
                Ok(()) => self.release(*set, old),
                Err(error) if renewed.is_ok() => {
                    let what =
                        format!("renew the marker that keeps change set {set} for this reader");
                    renewed = Err(error.within(what));
                }
                Err(_) => {}
            }
        }
        renewed
    }

    fn holder(&self, count: u32) -> MarkerHolder {
        MarkerHolder::Reader { id: self.id, count }
    }

    /// Removes the marker of `count` on `set`. Best effort, since markers expire.
    fn release(&self, set: SetId, count: Option<u32>) {
        if let Some(count) = count {
            drop(marker::release(&*self.store, set, &self.holder(count)));
        }
    }

    /// Checks that all sets exist and are not being deleted.
    ///
    /// # Errors
    /// `NotFound` if one does not; errors of the store.
    fn check_live(&self) -> Result<()> {
        self.sets.iter().try_for_each(|set| condemn::load_live(&*self.store, *set).map(drop))
    }
}

impl Drop for ReaderMarkers {
    fn drop(&mut self) {
        for set in &self.sets {
            for back in 1..=2 {
                self.release(*set, self.count.checked_sub(back));
            }
        }
    }
}

/// Keeps a reader's sets until it is dropped, with a thread that renews markers.
#[derive(Debug)]
pub struct ReadLease {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadLease {
    /// Renews `markers` from now on. Failures go to `report`.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub fn keep(
        mut markers: ReaderMarkers,
        report: impl Fn(Error) + Send + 'static,
    ) -> Result<Self> {
        Self::start(move |wait| {
            while wait(RENEWAL) {
                if let Err(error) = markers.renew().and_then(|()| markers.check_live()) {
                    report(error);
                }
            }
        })
    }

    /// Like [`ReadLease::keep`] for sets that are already being read, starting after
    /// [`LEASE_DELAY`]: a reader that ends earlier makes no store request. A reader that may not
    /// write to the store relies on the collections' grace period, as does a reader of a full store
    /// until a renewal finds room.
    ///
    /// # Errors
    /// As [`ReadLease::keep`].
    pub fn after_delay(
        repository: Repository,
        sets: Vec<SetId>,
        report: impl Fn(Error) + Send + 'static,
    ) -> Result<Self> {
        Self::start(move |wait| {
            if !wait(LEASE_DELAY) {
                return;
            }
            let mut markers = match repository.hold_for_reading(&sets) {
                Err(error) => return report(error),
                Ok(None) => return,
                Ok(Some(markers)) => markers,
            };
            loop {
                if let Err(error) = markers.check_live() {
                    report(error);
                }
                if !wait(RENEWAL) {
                    return;
                }
                if let Err(error) = markers.renew() {
                    report(error);
                }
            }
        })
    }

    /// Runs `work` on a thread; its argument waits and returns whether the lease continues.
    fn start(work: impl FnOnce(&dyn Fn(Duration) -> bool) + Send + 'static) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let wait = move |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let thread = std::thread::Builder::new().name("read-lease".into());
        let thread = thread
            .spawn(move || work(&wait))
            .map_err(|error| Error::io(error, "start a thread that keeps what is read"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has printed its own message.
            drop(thread.join());
        }
    }
}

fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), Kind::ReadOnly | Kind::Denied)
}

impl Repository {
    /// Like [`Repository::open`], with markers on `bases` from before they are opened: nothing that
    /// the namespace reads is collected while they are renewed, unless the store is full: see
    /// [`Repository::hold_for_reading`]. No markers if the caller may not write to the store. Cost:
    /// also two writes in all for each base.
    ///
    /// # Errors
    /// As [`Repository::open`].
    pub fn open_held(
        &self,
        bases: &[SetId],
        identity: Identity,
    ) -> Result<(Arc<Namespace>, Option<ReaderMarkers>)> {
        let markers = self.hold_for_reading(bases)?;
        Ok((Arc::new(self.open(bases, identity)?), markers))
    }

    /// Puts a reader's markers on `sets`; `None` if the caller may not write to the store. In a full
    /// store the sets without a marker rely on the collections' grace period until a renewal finds
    /// room.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn hold_for_reading(&self, sets: &[SetId]) -> Result<Option<ReaderMarkers>> {
        let mut markers = ReaderMarkers::unput(self, sets);
        match markers.renew() {
            Err(error) if is_refused(&error) => Ok(None),
            // Reading needs no room, and a full store may be read in order to empty it.
            Err(error) if error.kind() != Kind::NoSpace => Err(error),
            _ => Ok(Some(markers)),
        }
    }
}

//! Read leases: markers by which somebody who reads change sets for long keeps them, and all that
//! they are built on, from being collected.
//!
//! A reader puts `reader-<id>-<count>` on each set and puts the next count every [`RENEWAL`]. A
//! collection leaves alone what such markers reach while one of them is younger than [`LEASE`],
//! whatever its grace; of a reader that died they are swept after that. The marker before the newest
//! stays until the next renewal, so that a listing beside a renewal sees one of the two.
//! Readers that end within [`LEASE_DELAY`] put none: the grace of collections is for them.
//! Source: docs/design/0007-names.md.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetId;

use crate::condemn;
use crate::identity::Identity;
use crate::marker::{self, Holder};
use crate::namespace::Namespace;
use crate::repository::Repository;

/// A reader's marker keeps its set for this long.
pub const LEASE: Duration = Duration::from_secs(900);
/// How often a reader puts another marker.
pub const RENEWAL: Duration = Duration::from_secs(240);
/// A command holds what it reads if it takes longer than this.
pub const LEASE_DELAY: Duration = Duration::from_secs(30);
// One renewal may fail, or come late.
const _: () = assert!(RENEWAL.as_secs() * 3 < LEASE.as_secs());

/// The markers of one reader.
#[derive(Debug)]
pub struct ReaderMarkers {
    store: SharedStore,
    sets: Vec<SetId>,
    id: u64,
    /// How many markers each set has been given.
    count: u32,
}

impl ReaderMarkers {
    /// Puts markers on `sets`, from which on these and all that they are built on stay. Cost: a
    /// write for each set.
    ///
    /// # Errors
    /// `ReadOnly` and `Denied` where the reader may not write to the store; what else it reports.
    pub fn put(repository: &Repository, sets: &[SetId]) -> Result<Self> {
        let store = repository.store().clone();
        // The half of an identity that nobody else draws.
        let id = repository.draw_set_id().0 as u64;
        let mut markers = Self { store, sets: sets.to_vec(), id, count: 0 };
        markers.renew()?;
        Ok(markers)
    }

    /// Puts the next markers, on all sets also where one fails. Cost: a write for each set, and a
    /// deletion of an older marker.
    ///
    /// # Errors
    /// What the store reports of the first set that fails: its older markers count for as long as they
    /// would have.
    pub fn renew(&mut self) -> Result<()> {
        let (next, old) = (self.holder(self.count), self.count.checked_sub(2));
        // Also after a failure: a marker that is put again is not renewed.
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

    fn holder(&self, count: u32) -> Holder {
        Holder::Reader { id: self.id, count }
    }

    /// Removes the marker of `count` on `set`. Best effort: it expires.
    fn release(&self, set: SetId, count: Option<u32>) {
        if let Some(count) = count {
            drop(marker::release(&*self.store, set, &self.holder(count)));
        }
    }

    /// Whether all sets are there and not being deleted.
    ///
    /// # Errors
    /// `NotFound` if one is not; what the store reports.
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

/// Keeps what is read until it is dropped, by a thread that renews markers.
#[derive(Debug)]
pub struct ReadLease {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadLease {
    /// Renews `markers` from now on. Failures go to `report`.
    ///
    /// # Errors
    /// What the system reports where it has no thread left.
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

    /// As [`ReadLease::keep`] for what is read already, from [`LEASE_DELAY`] on: a reader that ends
    /// before that makes no store request. One that may not write to the store has the grace of
    /// collections only.
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
            let mut markers = match ReaderMarkers::put(&repository, &sets) {
                Err(error) if is_refused(&error) => return,
                Err(error) => return report(error),
                Ok(markers) => markers,
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

    /// Runs `work`, whose argument waits and says whether the lease goes on.
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
            // A panic of that thread has been reported by its own message.
            drop(thread.join());
        }
    }
}

fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), Kind::ReadOnly | Kind::Denied)
}

impl Repository {
    /// As [`Repository::open`], with markers on `bases` from before they are opened: nothing that the
    /// namespace reads is collected while they are renewed. No markers if the caller may not write to
    /// the store. Cost: also two writes for each base in all.
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

    /// Puts a reader's markers on `sets`; none if the caller may not write to the store.
    ///
    /// # Errors
    /// What the store reports.
    pub fn hold_for_reading(&self, sets: &[SetId]) -> Result<Option<ReaderMarkers>> {
        match ReaderMarkers::put(self, sets) {
            Err(error) if is_refused(&error) => Ok(None),
            held => held.map(Some),
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Fault store: wraps a store with failures, delays, crashes and power losses, from a seed.
//!
//! ```text
//! operation  1 … n-1      n                     n+1 …
//!            reach the    fails; takes effect,  fail with `Closed`,
//!            inner store  in part, or not       nothing reaches the inner store
//! ```
//! A test first runs its subject to count operations. Then, for each n, it runs it with the world
//! stopped at operation n, and opens what a machine would find afterwards:
//! [`FaultStore::after_process_death`] or [`FaultStore::after_power_loss`].
//! Invariants: (1) everything acknowledged as durable is in every image; (2) with one thread, the
//! same seed and settings give the same outcomes and images.
//! Concurrency: `plan` guards the settings and is never held across the inner store. Each operation
//! holds `running` shared, and taking an image holds it exclusively, so an image waits for
//! operations under way.
//! Source: fault model of Protocol-Aware Recovery, Alagappan et al., FAST 2018; order of pages
//! lost, Pillai et al., "All file systems are not created equal", OSDI 2014.

mod image;
mod log;
mod plan;
mod writer;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use self::log::FaultLog;
use self::plan::{FaultPlan, OperationFate};
use self::writer::FaultWriter;
use super::{AppendLog, ObjectInfo, ObjectWriter, SharedStore, Store};
use crate::{Kind, Result};

/// The effect that a failing operation has nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// Nothing.
    None,
    /// An append: a random prefix of its bytes. Anything else: all or nothing, at random.
    Partial,
    /// Everything: only the answer was lost.
    Full,
}

/// A store that fails as configured. Operations are numbered from 1: every call that would reach
/// the store is one, including those of writers and logs.
#[derive(Debug)]
pub struct FaultStore {
    shared: Arc<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    inner: SharedStore,
    plan: Mutex<FaultPlan>,
    running: RwLock<()>,
}

impl FaultStore {
    /// Wraps `inner`, without faults until some are set; `seed` decides everything random.
    #[must_use]
    pub fn new(inner: SharedStore, seed: u64) -> Self {
        let plan = Mutex::new(FaultPlan::new(seed));
        Self { shared: Arc::new(FaultState { inner, plan, running: RwLock::new(()) }) }
    }

    /// Stops the world at the `n`-th operation, or at the next one if that has passed: it fails
    /// with `effect`, and everything after it fails with `Closed` and never reaches the inner
    /// store.
    pub fn stop_at(&self, n: u64, effect: FaultEffect) {
        self.shared.plan.lock().stop = Some((n, effect));
    }

    /// Fails the `n`-th operation with `kind`, without effect; later ones work.
    pub fn fail_at(&self, n: u64, kind: Kind) {
        self.fail_at_with(n, kind, FaultEffect::None);
    }

    /// Fails the `n`-th operation with `kind` and with `effect`, as when an answer is lost on the
    /// way; later ones work.
    pub fn fail_at_with(&self, n: u64, kind: Kind, effect: FaultEffect) {
        self.shared.plan.lock().failures.insert(n, (kind, effect));
    }

    /// Fails one operation in `chances` with `kind`, without effect; 0 fails none.
    pub fn fail_one_in(&self, chances: u64, kind: Kind) {
        self.shared.plan.lock().fail_one_in = (chances, kind);
    }

    /// Makes the store full from the `n`-th operation on, until [`FaultStore::make_room`]: every
    /// operation that needs room fails with `NoSpace` and with `effect`. These are puts, and
    /// opening, writing and finishing objects and logs. Reads, syncs and deletions work.
    pub fn fill_at(&self, n: u64, effect: FaultEffect) {
        self.shared.plan.lock().full = Some((n, effect));
    }

    /// Makes room again: operations that need some succeed from now on.
    pub fn make_room(&self) {
        self.shared.plan.lock().full = None;
    }

    /// Delays each operation by a random time up to `delay_max`.
    pub fn delay(&self, delay_max: Duration) {
        self.shared.plan.lock().delay_max = delay_max;
    }

    /// The number of operations so far, counting those that failed but not those after the world
    /// stopped.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.plan.lock().operations
    }

    /// Returns whether the world has stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.plan.lock().stopped
    }

    /// Returns a store in memory with what another process finds after this one died: every byte
    /// that was passed to the store, and no unfinished object.
    ///
    /// # Errors
    /// Those of reading the inner store.
    pub fn after_process_death(&self) -> Result<SharedStore> {
        let _still = self.shared.running.write();
        image::take(&self.shared, |_, _, bytes| Some(bytes))
    }

    /// Returns a store in memory with what a machine finds after power loss. An append log that is
    /// not synced to its end is cut to a random prefix with at least its synced bytes; the last
    /// pages may be zeroed, garbled or lost out of order. Each call draws another outcome.
    ///
    /// # Errors
    /// Those of reading the inner store.
    pub fn after_power_loss(&self) -> Result<SharedStore> {
        let _still = self.shared.running.write();
        image::take(&self.shared, image::lose_power)
    }

    fn act<T>(&self, what: &str, name: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.shared.act(what, name, act)
    }

    fn add<T>(&self, what: &str, name: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.shared.add(what, name, act)
    }
}

impl FaultState {
    /// Runs `act` as one operation, unless its fate says otherwise.
    fn act<T>(&self, what: &str, name: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.act_as(false, what, name, act)
    }

    /// Runs `act` as [`FaultState::act`] does, as an operation that needs room.
    fn add<T>(&self, what: &str, name: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.act_as(true, what, name, act)
    }

    fn act_as<T>(
        &self,
        needs_room: bool,
        what: &str,
        name: &str,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _running = self.running.read();
        match self.fate(needs_room) {
            OperationFate::Done => act(),
            OperationFate::Failed { kind, effect, share, n } => {
                let takes_effect = match effect {
                    FaultEffect::None => false,
                    FaultEffect::Partial => share % 2 == 0,
                    FaultEffect::Full => true,
                };
                if takes_effect {
                    // The caller gets the fault, whatever the outcome.
                    drop(act());
                }
                Err(plan::fault(kind, what, name, n))
            }
        }
    }

    /// Draws the fate of the next operation and waits for its delay.
    fn fate(&self, needs_room: bool) -> OperationFate {
        let (fate, delay) = self.plan.lock().draw(needs_room);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        fate
    }
}

impl Store for FaultStore {
    fn url(&self) -> String {
        self.shared.inner.url()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.add("put", name, || self.shared.inner.put_if_absent(name, bytes))
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        let inner = self.add("create", name, || self.shared.inner.create(name))?;
        Ok(Box::new(FaultWriter::new(Arc::clone(&self.shared), name.into(), inner)))
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.act("size", name, || self.shared.inner.size(name))
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.act("get", name, || self.shared.inner.get(name, bytes_max))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.act("get", name, || self.shared.inner.get_range(name, range))
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.act("get", name, || self.shared.inner.get_ranges(name, ranges))
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        let inner = self.add("open", name, || {
            let inner = self.shared.inner.append_log(name)?;
            self.shared.plan.lock().logs.insert(name.into(), plan::LogDurability::default());
            Ok(inner)
        })?;
        Ok(Box::new(FaultLog::new(Arc::clone(&self.shared), name.into(), inner)))
    }

    fn open_logs_max(&self) -> usize {
        self.shared.inner.open_logs_max()
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        self.act("sync", name, || {
            let reached = self.shared.inner.size(name)?;
            self.shared.inner.sync_log(name)?;
            if let Some(state) = self.shared.plan.lock().logs.get_mut(name) {
                state.synced = state.synced.max(Some(reached));
            }
            Ok(())
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.act("list", prefix, || self.shared.inner.list(prefix))
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.act("list", prefix, || self.shared.inner.list_names(prefix))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.act("delete", name, || {
            self.shared.inner.delete(name)?;
            self.shared.plan.lock().logs.remove(name);
            Ok(())
        })
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(if self.shared.plan.lock().is_full() { 0 } else { u64::MAX })
    }

    fn keep_reserve(&self) {
        self.shared.inner.keep_reserve();
    }

    fn release_reserve(&self) -> bool {
        self.shared.inner.release_reserve()
    }

    fn sweep_unfinished(&self, before_ns: u64, dry_run: bool) -> Result<u64> {
        self.act("sweep", "", || self.shared.inner.sweep_unfinished(before_ns, dry_run))
    }
}

#[cfg(test)]
mod tests;

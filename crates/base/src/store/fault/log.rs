// SPDX-License-Identifier: Apache-2.0
//! Append log through a fault store: records the synced bytes, and poisons itself as real logs do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::{OperationFate, fault};
use super::{FaultEffect, FaultState};
use crate::store::{AppendLog, poisoned};
use crate::{Kind, Result};

pub(super) struct FaultLog {
    shared: Arc<FaultState>,
    name: String,
    inner: Box<dyn AppendLog>,
    poisoned: AtomicBool,
}

impl FaultLog {
    pub(super) fn new(shared: Arc<FaultState>, name: String, inner: Box<dyn AppendLog>) -> Self {
        Self { shared, name, inner, poisoned: AtomicBool::new(false) }
    }

    fn check(&self) -> Result<()> {
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(poisoned(&self.name));
        }
        Ok(())
    }

    fn poison_if_failed<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.poisoned.store(true, Ordering::SeqCst);
        }
        outcome
    }

    fn append_as_fated(&self, bytes: &[u8]) -> Result<u64> {
        let _running = self.shared.running.read();
        match self.shared.fate(true) {
            OperationFate::Done => self.inner.append(bytes),
            OperationFate::Failed { kind, effect, share, n } => {
                let kept = match effect {
                    FaultEffect::None => 0,
                    FaultEffect::Partial => share % (bytes.len() as u64 + 1),
                    FaultEffect::Full => bytes.len() as u64,
                };
                let kept = usize::try_from(kept).expect("no more than was given");
                if kept > 0 {
                    // The caller gets the fault, whatever the outcome.
                    drop(self.inner.append(&bytes[..kept]));
                }
                Err(fault(kind, "append to", &self.name, n))
            }
        }
    }
}

impl AppendLog for FaultLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.check()?;
        let before = self.inner.bytes();
        let appended = self.append_as_fated(bytes);
        match &appended {
            // Like a real log, which takes back an append for which it had no room.
            Err(error) if error.kind() == Kind::NoSpace && self.inner.bytes() == before => appended,
            _ => self.poison_if_failed(appended),
        }
    }

    fn sync(&self) -> Result<()> {
        self.check()?;
        let outcome = self.shared.act("sync", &self.name, || {
            let reached = self.inner.bytes();
            self.inner.sync()?;
            if let Some(state) = self.shared.plan.lock().logs.get_mut(&self.name) {
                state.synced = state.synced.max(Some(reached));
            }
            Ok(())
        });
        self.poison_if_failed(outcome)
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

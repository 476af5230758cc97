// SPDX-License-Identifier: Apache-2.0
//! Writer of one object through a fault store.

use std::sync::Arc;

use super::FaultState;
use crate::Result;
use crate::store::{ObjectWriter, poisoned};

pub(super) struct FaultWriter {
    shared: Arc<FaultState>,
    name: String,
    inner: Box<dyn ObjectWriter>,
    failed: bool,
}

impl FaultWriter {
    pub(super) fn new(shared: Arc<FaultState>, name: String, inner: Box<dyn ObjectWriter>) -> Self {
        Self { shared, name, inner, failed: false }
    }
}

impl ObjectWriter for FaultWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Self { shared, name, inner, failed } = self;
        let outcome = shared.add("write", name, || inner.write(bytes));
        *failed |= outcome.is_err();
        outcome
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { shared, name, inner, failed } = *self;
        // Pieces are missing: the object must not appear, not even as an effect of a fault.
        let finish = || if failed { Err(poisoned(&name)) } else { inner.finish() };
        shared.add("finish", &name, finish)
    }
}

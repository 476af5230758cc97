// SPDX-License-Identifier: Apache-2.0
//! Writer of one object: gathers pieces in a buffer and writes them to an aside file in large
//! writes.
//! Invariant: once a write has failed, bytes may be missing, so the object never appears.

use super::aside::AsideFile;
use crate::Result;
use crate::store::{ObjectWriter, poisoned};

/// Pieces gather until they fill a write of this many bytes: the stripe of parallel file systems.
const BUFFER_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct PosixWriter {
    name: String,
    aside: AsideFile,
    buffer: Vec<u8>,
    failed: bool,
}

impl PosixWriter {
    pub(super) fn new(name: String, aside: AsideFile) -> Self {
        Self { name, aside, buffer: Vec::new(), failed: false }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            return self.aside.write(bytes);
        }
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(BUFFER_BYTES);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.failed { Err(poisoned(&self.name)) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.aside.write(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl ObjectWriter for PosixWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let outcome = self.push(bytes);
        self.failed = outcome.is_err();
        outcome
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.check()?;
        self.flush()?;
        let Self { name, aside, .. } = *self;
        aside.publish(&name)
    }
}

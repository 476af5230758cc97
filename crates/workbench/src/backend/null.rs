// SPDX-License-Identifier: Apache-2.0
//! Null: a service that does nothing, for the floor of the workbench itself.
//!
//! It keeps only the marker, so it passes no conformance test: everything succeeds.

use esker_base::{Error, Kind, Result};
use parking_lot::Mutex;

use super::{Backend, BackendConnection};
use crate::pattern::{DatasetId, ObjectId, WorkingSetSize};

/// A service that does nothing.
#[derive(Debug, Default)]
pub struct NullBackend {
    marker: Mutex<Option<Vec<u8>>>,
}

impl Backend for NullBackend {
    fn target(&self) -> String {
        "null:".to_owned()
    }

    fn kind(&self) -> &'static str {
        "null"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(NullConnection))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.marker.lock().clone())
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        *self.marker.lock() = Some(marker.to_vec());
        Ok(())
    }

    fn clear(&self) -> Result<u64> {
        match self.marker.lock().take() {
            Some(_) => Ok(0),
            None => Err(Error::new(Kind::NotFound, "null: there is no working set")),
        }
    }

    fn keeps_content(&self) -> bool {
        false
    }
}

struct NullConnection;

impl BackendConnection for NullConnection {
    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, _: ObjectId, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn stat(&mut self, _: ObjectId) -> Result<u64> {
        Ok(0)
    }

    fn read(&mut self, _: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        content.clear();
        Ok(())
    }

    fn delete(&mut self, _: ObjectId) -> Result<()> {
        Ok(())
    }

    fn list(&mut self, _: DatasetId, _: bool) -> Result<u64> {
        Ok(0)
    }

    fn rename(&mut self, _: ObjectId, _: ObjectId) -> Result<()> {
        Ok(())
    }
}

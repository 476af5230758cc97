// SPDX-License-Identifier: Apache-2.0
//! Object content: the bytes of objects, which identify the object and the position.
//!
//! All objects share a template of random bytes; the first 16 are replaced by the object's
//! identity. So neither another object's content nor shifted or repeated bytes pass, and making and
//! checking content costs no more than copying and comparing it.

use esker_base::{Error, Kind, Random, Result};

use crate::pattern::ObjectId;

const IDENTITY_BYTES: usize = 16;

/// Seed of the template: the same for all ranks and runs, since working sets are reused.
const TEMPLATE_SEED: u64 = 0x6d64_776f_726b;

/// The content of objects of one size.
#[derive(Debug)]
pub struct ObjectContent {
    bytes: Vec<u8>,
}

impl ObjectContent {
    /// Content of `object_bytes` per object.
    #[must_use]
    pub fn new(object_bytes: usize) -> Self {
        let mut bytes = vec![0; object_bytes];
        Random::from_seed(TEMPLATE_SEED).fill(&mut bytes);
        Self { bytes }
    }

    /// The content of `object`.
    pub fn of(&mut self, object: ObjectId) -> &[u8] {
        let identity = identity(object);
        let length = self.bytes.len().min(IDENTITY_BYTES);
        self.bytes[..length].copy_from_slice(&identity[..length]);
        &self.bytes
    }

    /// Checks that `found` is the content of `object`.
    ///
    /// # Errors
    /// `Corrupt` with the first byte that differs.
    pub fn check(&mut self, object: ObjectId, found: &[u8]) -> Result<()> {
        let expected = self.of(object);
        if expected == found {
            return Ok(());
        }
        if expected.len() != found.len() {
            let what = format!("{object} has {} bytes, not {}", found.len(), expected.len());
            return Err(Error::new(Kind::Corrupt, what));
        }
        let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or_default();
        let what = format!("expected {:#04x}, got {:#04x}", expected[at], found[at]);
        Err(Error::corrupt(&object.to_string(), at as u64, what))
    }
}

fn identity(object: ObjectId) -> [u8; IDENTITY_BYTES] {
    let mut bytes = [0; IDENTITY_BYTES];
    bytes[..4].copy_from_slice(&object.dataset.rank.to_le_bytes());
    bytes[4..8].copy_from_slice(&object.dataset.number.to_le_bytes());
    bytes[8..].copy_from_slice(&object.number.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::DatasetId;

    #[test]
    fn content_identifies_object_and_position() {
        let mut content = ObjectContent::new(100);
        let object = |number| DatasetId { rank: 1, number: 2 }.object(number);
        let bytes = content.of(object(3)).to_vec();
        content.check(object(3), &bytes).expect("its own");
        let shifted: Vec<u8> = bytes[1..].iter().chain(&bytes[..1]).copied().collect();
        for (object, found) in
            [(object(4), &bytes[..]), (object(3), &bytes[1..]), (object(3), &shifted)]
        {
            assert_eq!(content.check(object, found).expect_err("wrong").kind(), Kind::Corrupt);
        }
    }
}

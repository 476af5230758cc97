// SPDX-License-Identifier: Apache-2.0
//! Answer: the outcomes of the items of one request.

use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Error, Result};

use crate::wire::{FrameHeader, Verb, take_attributes, take_status};

/// Largest text of a server's status.
const STATUS_BYTES_MAX: usize = 1 << 20;

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    header: FrameHeader,
    payload: Vec<u8>,
}

impl Answer {
    pub(super) fn new(header: FrameHeader, payload: Vec<u8>) -> Self {
        Self { header, payload }
    }

    /// Calls `take` for each item that succeeded, with the bytes that the item returned, in order;
    /// returns the outcomes.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are no such answer.
    pub fn items<T>(
        &self,
        mut take: impl FnMut(&mut WireInput) -> Result<T, WireDamage>,
    ) -> Result<Vec<Result<T>>> {
        let mut input = WireInput::new(&self.payload);
        let mut outcomes = Vec::with_capacity(usize::from(self.header.items));
        let mut each = || {
            for _ in 0..self.header.items {
                outcomes.push(match take_status(&mut input)? {
                    Ok(()) => Ok(take(&mut input)?),
                    Err(error) => Err(error),
                });
            }
            input.end()
        };
        each().map_err(|damage| damage.of("an answer of a server", 0))?;
        Ok(outcomes)
    }

    /// The outcome of the only item.
    ///
    /// # Errors
    /// As the item failed; `Corrupt` for bytes that are no such answer.
    pub fn only<T>(&self, take: impl FnMut(&mut WireInput) -> Result<T, WireDamage>) -> Result<T> {
        match self.items(take)?.pop() {
            Some(outcome) => outcome,
            None => Err(Error::corrupt("an answer of a server", 0, "no item")),
        }
    }

    /// The outcomes of items, without the attributes that some return.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are no such answer.
    pub fn outcomes(&self) -> Result<Vec<Result<()>>> {
        match self.header.verb {
            Verb::MakeNode | Verb::Link => self.items(|input| take_attributes(input).map(drop)),
            _ => self.items(|_| Ok(())),
        }
    }

    /// The outcome of the only item, without the attributes that it may return.
    ///
    /// # Errors
    /// As [`Answer::only`].
    pub fn outcome(&self) -> Result<()> {
        let none = || Error::corrupt("an answer of a server", 0, "no item");
        self.outcomes()?.pop().unwrap_or_else(|| Err(none()))
    }

    /// The state of a server, as JSON.
    ///
    /// # Errors
    /// As [`Answer::only`].
    pub fn status(&self) -> Result<serde_json::Value> {
        let text = self.only(|input| Ok(input.bytes(STATUS_BYTES_MAX, "a status")?.to_vec()))?;
        serde_json::from_slice(&text)
            .map_err(|error| Error::corrupt("the status of a server", 0, error.to_string()))
    }
}

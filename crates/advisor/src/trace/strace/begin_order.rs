// SPDX-License-Identifier: Apache-2.0
//! Begin order: puts records into the order in which their calls began, although calls end in
//! another.
//!
//! A call takes a ticket when it begins. Its records wait until all calls before it have ended, at
//! most [`TICKETS_MAX`] calls.

use std::collections::VecDeque;

use crate::trace::TraceRecord;

/// Maximum number of calls that wait. A call that more others overtake is given up, so that memory
/// is bounded.
const TICKETS_MAX: usize = 1 << 18;

/// The place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginTicket(u64);

/// Calls that have begun.
#[derive(Debug, Default)]
pub struct BeginOrder {
    /// The number of the first ticket in `calls`.
    first: u64,
    /// `None` while a call goes on.
    calls: VecDeque<Option<Vec<TraceRecord>>>,
}

impl BeginOrder {
    /// Begins a call.
    pub fn begin(&mut self) -> BeginTicket {
        self.calls.push_back(None);
        BeginTicket(self.first + self.calls.len() as u64 - 1)
    }

    /// Ends a call; false if it was given up.
    pub fn end(&mut self, ticket: BeginTicket, records: Vec<TraceRecord>) -> bool {
        let index = ticket.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| self.calls.get_mut(index)) {
            Some(call) => {
                *call = Some(records);
                true
            }
            None => false,
        }
    }

    /// The records of the next call, if all calls before it have ended.
    pub fn next(&mut self) -> Option<Vec<TraceRecord>> {
        let is_full = self.calls.len() > TICKETS_MAX;
        if !is_full && !matches!(self.calls.front(), Some(Some(_))) {
            return None;
        }
        self.take_first()
    }

    /// The records of the next call, whether calls before it have ended or not.
    pub fn take_first(&mut self) -> Option<Vec<TraceRecord>> {
        let call = self.calls.pop_front()?;
        self.first += 1;
        Some(call.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceOperation;

    fn record(rank: u32) -> Vec<TraceRecord> {
        vec![TraceRecord::new(rank, TraceOperation::Stat)]
    }

    #[test]
    fn records_wait_for_earlier_calls() {
        let mut order = BeginOrder::default();
        let [first, second, third] = [(); 3].map(|()| order.begin());
        assert!(order.end(second, record(2)));
        assert_eq!(order.next(), None);
        assert!(order.end(first, record(1)));
        assert_eq!(
            [order.next(), order.next(), order.next()],
            [Some(record(1)), Some(record(2)), None]
        );
        assert_eq!(order.take_first(), Some(vec![]));
        assert!(!order.end(third, record(3)));
    }

    #[test]
    fn a_call_that_never_ends_is_given_up() {
        let mut order = BeginOrder::default();
        let first = order.begin();
        for _ in 0..=TICKETS_MAX {
            let ticket = order.begin();
            assert!(order.end(ticket, record(1)));
            while order.next().is_some() {}
        }
        assert!(!order.end(first, record(0)), "given up");
        assert!(order.calls.is_empty());
    }
}

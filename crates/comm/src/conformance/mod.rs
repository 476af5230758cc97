// SPDX-License-Identifier: Apache-2.0
//! Conformance: the contract of transports, as functions that all ranks of a job call together.
//!
//! The tests of threads, TCP and MPI run it, as does a program started with `esker run` or
//! `mpirun`. A failed check panics.

mod messages;
mod pressure;
mod records;

use crate::transport::Transport;

type TransportCheck = fn(&mut dyn Transport);

const CHECKS: &[(&str, TransportCheck)] = &[
    ("order", messages::order),
    ("sizes", messages::sizes),
    ("oneself", messages::oneself),
    ("channels by priority", messages::priority),
    ("refusals", messages::refusals),
    ("counters", messages::counters),
    ("barriers", messages::barriers),
    ("backpressure", pressure::backpressure),
    ("full both ways", pressure::full_both_ways),
    ("slow receiver", pressure::slow_receiver),
    ("records", records::all_pairs),
    ("records of one length", records::one_length),
    ("records of any length", records::any_length),
    ("records under pressure", records::one_target),
];

/// Runs every check. All ranks of a job call it, with no messages under way.
///
/// # Panics
/// If a check fails; the message says which.
pub fn all(transport: &mut dyn Transport) {
    let name = std::env::var_os("ESKER_CONFORMANCE_TRACE");
    for (what, check) in CHECKS {
        if name.is_some() && transport.rank().0 == 0 {
            eprintln!("conformance: {what}");
        }
        check(transport);
        // Messages that a check leaves under way would disturb the next check.
        transport.barrier().unwrap_or_else(|error| panic!("after {what}: {error}"));
    }
}

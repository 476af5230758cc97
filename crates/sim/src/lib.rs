// SPDX-License-Identifier: Apache-2.0
//! Deterministic simulation of a whole job: actors on threads of their own, of which one runs at a
//! time, above a store and a clock that fail according to a plan.
//!
//! ```text
//! actor ──request──► Process ──turn──► Machine: scheduler, plan of faults, clock, disk
//! ```
//! An actor gives up its turn only at requests to the store, so the seed of the schedule determines
//! every interleaving. Two actors that shared a lock in memory would deadlock the machine, so each
//! has its own sessions. The actions of a second thread of a session are executed by the actor
//! itself in the middle of a call, before a request at which that call holds no conflicting lock
//! (`ActorProcess::act_before`). Other races within one session are tested beside its code.
//!
//! `tests/` runs whole jobs on it and compares names, sets and the findings of `verify` with a
//! reference. `ESKER_SEED=n cargo test -p esker-sim runs` replays a seed, `ESKER_SEEDS=n` runs the
//! first n. `mutants/` has a patch for each fixed defect that a test here, or in the crate that had
//! it, must detect again: `make mutants`.
//!
//! Source: TigerBeetle's VOPR; Zhou et al., "FoundationDB", SIGMOD 2021, §4 (deterministic
//! simulation).

mod disk;
mod fault;
mod machine;
mod process;
mod shifted_clock;

pub use self::fault::{FaultKind, RequestFault};
pub use self::machine::{ActorId, MachineOptions, RunOutcome, SimulatedMachine};
pub use self::process::ActorProcess;
pub use self::shifted_clock::ShiftedClock;

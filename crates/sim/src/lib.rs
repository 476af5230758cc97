//! Simulation of a whole job on one machine room: actors on threads of their own, of which one runs
//! at a time, above a store and a clock that fail as a plan says.
//!
//! ```text
//! actor ──request──► Process ──turn──► Machine: scheduler, plan of faults, clock, disk
//! ```
//! An actor gives up its turn only at requests to the store, so the seed of the schedule decides every
//! interleaving. Two actors that share a lock in memory would stop the machine, so each has sessions of
//! its own. What a second thread of a session does, an actor does itself in the midst of a call, before
//! a request at which that call holds no lock in the way (`Process::act_before`); other races within one
//! session are the subject of tests beside its code.
//!
//! `tests/` runs whole jobs on it and compares names, sets and what `verify` finds with a reference.
//! `ESKER_SEED=n cargo test -p esker-sim runs` replays a seed, `ESKER_SEEDS=n` runs the first n.
//! `mutants/` has a patch for each defect that was mended and that something here, or a test of the
//! crate that had it, must notice again: `make mutants`.
//!
//! Source: TigerBeetle's VOPR; Zhou et al., "FoundationDB", SIGMOD 2021, §4 (deterministic simulation).

mod disk;
mod fault;
mod machine;
mod process;
mod shifted_clock;

pub use self::fault::{Fault, FaultKind};
pub use self::machine::{ActorId, Machine, MachineOptions, Outcome};
pub use self::process::Process;
pub use self::shifted_clock::ShiftedClock;

//! Mounts in the process of the test, over stores that fail as they are told, and what programs
//! may rely on whatever is mounted.

mod faults;
mod garbage;
mod listings;
mod mounted;
mod passthrough;
mod posix;
mod prune;
mod semantics;

//! Tests of the command as users run it.

mod arguments;
mod esker;
mod failures;
mod imd;
mod imd_import;
mod inherited;
mod json;
mod mounted;
mod mounts;
mod round_trip;
mod run;
mod sessions;
mod shared;
mod stacks;
mod suites;

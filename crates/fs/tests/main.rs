//! Tests of file systems as a whole.

mod campaign;
mod concurrency;
mod crash;
mod files;
mod gc;
mod in_place;
mod input;
mod interleave;
mod job;
mod many_parts;
mod model;
mod operation;
mod posix;
mod random_operation;
mod real;
mod reference;
mod regressions;
mod smoke;
mod space;
mod squash;
mod stack;
mod subject;
mod transfer;
mod trees;
mod verify;

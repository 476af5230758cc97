//! Tests of file systems as a whole.

mod gc;
mod smoke;
mod squash;
mod verify;

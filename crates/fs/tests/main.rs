//! Tests of file systems as a whole.

mod smoke;

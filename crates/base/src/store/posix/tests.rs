//! Tests of what only the POSIX store does.

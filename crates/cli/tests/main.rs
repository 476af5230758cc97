//! Tests of the command as users run it.

//! Tests of ranks and messages, a module for each topic.

mod collective;
mod launch;
mod tcp;
mod threads;

//! Tests of ranks and messages, a module for each topic.

mod launch;
mod tcp;
mod threads;

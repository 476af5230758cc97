//! Tests of ranks and messages, a module for each topic.

mod threads;

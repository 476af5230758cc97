// SPDX-License-Identifier: Apache-2.0
//! Tests of ranks and messages, a module for each topic.

mod collective;
mod launch;
mod tcp;
mod threads;

// SPDX-License-Identifier: Apache-2.0
//! Tests of the advisor.

mod darshan_logs;
mod measurements;
mod models;
mod observations;
mod patterns;
mod replays;
mod strace_logs;
mod trace_files;
mod paper;
mod recovery;
mod statistics;

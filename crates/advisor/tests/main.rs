// SPDX-License-Identifier: Apache-2.0
//! Tests of the advisor.

mod advices;
mod darshan_logs;
mod feature_rate;
mod joins;
mod measurements;
mod models;
mod observations;
#[path = "../../workbench/tests/page_layout.rs"]
mod page_layout;
mod pages;
mod paper;
mod parquet_tables;
mod patterns;
mod recorder_tables;
mod recorder_texts;
mod recording_cost;
mod recordings;
mod recovery;
mod replays;
mod statistics;
mod strace_logs;
mod trace_files;

// SPDX-License-Identifier: Apache-2.0
//! Tests of the advisor.

mod observations;
mod strace_logs;
mod trace_files;

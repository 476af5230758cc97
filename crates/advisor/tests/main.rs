// SPDX-License-Identifier: Apache-2.0
//! Tests of the advisor.

mod observations;
mod trace_files;

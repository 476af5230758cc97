// SPDX-License-Identifier: Apache-2.0
//! The program `esker-bench`, which `esker bench` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    esker_cli::esker_bench()
}

// SPDX-License-Identifier: Apache-2.0
//! The program `esker`.

use std::process::ExitCode;

fn main() -> ExitCode {
    esker_cli::esker()
}

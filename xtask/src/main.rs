// SPDX-License-Identifier: Apache-2.0
//! Chores of the project itself: `cargo xtask tidy`.

mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy [--bless]

  tidy           check the rules of style that a machine can check
  tidy --bless   shorten xtask/long_functions.txt to what is still long; it never grows";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["tidy"] => tidy::check(),
        ["tidy", "--bless"] => tidy::bless(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Usage: mistakes in the command line itself, independent of the store's contents. They end the
//! command with exit code 2, like those that the argument parser finds.

use std::fmt::Display;

use esker_base::Result;
use esker_fs::names;

use crate::location::StackArgument;
use crate::output::notice;

/// The exit code of usage errors.
const EXIT_CODE: i32 = 2;

/// Prints the mistake and ends the command.
pub fn exit(what: impl Display) -> ! {
    notice(what.to_string());
    std::process::exit(EXIT_CODE)
}

/// The value of an argument; ends the command if it is invalid.
pub fn value_of<T, E: Display>(parsed: Result<T, E>) -> T {
    parsed.unwrap_or_else(|error| exit(error))
}

/// Ends the command unless `name` is a valid snapshot name.
pub fn check_name(name: &str) {
    value_of(names::check(name));
}

/// The stack that `text` names; ends the command if it is invalid.
pub fn stack(text: &str) -> StackArgument {
    value_of(StackArgument::parse(text.as_bytes()))
}

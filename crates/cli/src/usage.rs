//! Usage: mistakes in the command line itself, whatever the store has. They end the command with exit
//! code 2, as those that the parser of arguments finds.

use std::fmt::Display;

use esker_base::Result;
use esker_fs::names;

use crate::location::Stack;
use crate::output::notice;

/// The exit code of usage errors.
const EXIT_CODE: i32 = 2;

/// Says what is wrong, and ends the command.
pub fn exit(what: impl Display) -> ! {
    notice(what.to_string());
    std::process::exit(EXIT_CODE)
}

/// The value that an argument has.
pub fn value_of<T, E: Display>(parsed: Result<T, E>) -> T {
    parsed.unwrap_or_else(|error| exit(error))
}

/// Ends the command unless `name` can be the name of a snapshot.
pub fn check_name(name: &str) {
    value_of(names::check(name));
}

/// The stack that `text` names.
pub fn stack(text: &str) -> Stack {
    value_of(Stack::parse(text.as_bytes()))
}

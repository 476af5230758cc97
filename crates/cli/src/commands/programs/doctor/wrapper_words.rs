// SPDX-License-Identifier: Apache-2.0
//! Wrapper words: programs such as `env` and `timeout`, which become or start the program that
//! their arguments name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The programs that are known.
const WRAPPERS: &[ProgramWrapper] = &[
    ProgramWrapper {
        name: "env",
        options_with_value: &["-u", "--unset", "-C", "--chdir"],
        operands: 0,
    },
    ProgramWrapper { name: "nice", options_with_value: &["-n", "--adjustment"], operands: 0 },
    ProgramWrapper { name: "nohup", options_with_value: &[], operands: 0 },
    ProgramWrapper { name: "setsid", options_with_value: &[], operands: 0 },
    ProgramWrapper {
        name: "time",
        options_with_value: &["-f", "--format", "-o", "--output"],
        operands: 0,
    },
    // The operand is the duration.
    ProgramWrapper {
        name: "timeout",
        options_with_value: &["-k", "--kill-after", "-s", "--signal"],
        operands: 1,
    },
];

/// A program that starts another one.
struct ProgramWrapper {
    name: &'static str,
    /// Options whose value is the next word.
    options_with_value: &'static [&'static str],
    /// Number of words between the options and the program.
    operands: usize,
}

/// The number of words at the start of `words` that belong to a wrapper, such as 3 for
/// `nice -n 5 ./x`. 0 if the first word is no wrapper, or if no program follows in a word of its own.
pub fn wrapper_length(words: &[OsString]) -> usize {
    let Some(name) = words.first().and_then(|word| Path::new(word).file_name()) else { return 0 };
    let Some(wrapper) = WRAPPERS.iter().find(|wrapper| name == wrapper.name) else { return 0 };
    let mut next = 1;
    while let Some(word) = words.get(next).filter(|word| word.as_bytes().starts_with(b"-")) {
        if is_command_in_one_word(wrapper, word) {
            return 0;
        }
        next += 1;
        if word == "--" {
            break;
        }
        next += usize::from(wrapper.options_with_value.iter().any(|option| word == option));
    }
    if wrapper.name == "env" {
        next += words.iter().skip(next).take_while(|word| word.as_bytes().contains(&b'=')).count();
    }
    next += wrapper.operands;
    if next < words.len() { next } else { 0 }
}

/// True for `env -S "PROGRAM ARGUMENT"`, also among other short options.
fn is_command_in_one_word(wrapper: &ProgramWrapper, word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    let is_short = !bytes.starts_with(b"--");
    wrapper.name == "env"
        && (bytes.starts_with(b"--split-string") || (is_short && bytes.contains(&b'S')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_follows_options_and_operands() {
        for (line, length) in [
            ("env ./x", 1),
            ("/usr/bin/env -i -u HOME A=1 B=2 ./x a=b", 6),
            ("env -- A=1 ./x", 3),
            ("env -S ./x", 0),
            ("env -iS ./x y", 0),
            ("env A=1", 0),
            ("nice ./x", 1),
            ("nice -n 5 ./x", 3),
            ("nice -n5 ./x", 2),
            ("nice -5 ./x", 2),
            ("timeout 60 ./x 7", 2),
            ("timeout --foreground -k 5 60 ./x", 5),
            ("timeout 60", 0),
            ("time -p ./x", 2),
            ("nohup ./x", 1),
            ("setsid -w ./x", 2),
            ("./x env y", 0),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(wrapper_length(&words), length, "{line}");
        }
        assert_eq!(wrapper_length(&[]), 0);
    }
}

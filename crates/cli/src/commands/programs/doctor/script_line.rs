// SPDX-License-Identifier: Apache-2.0
//! Script line: the first line of a script, `#!INTERPRETER [ARGUMENT]`, as the kernel reads it.
//!
//! Source: execve(2); fs/binfmt_script.c of Linux 6.18.

/// Bytes of a file that the kernel looks at.
pub const LINE_BYTES_MAX: usize = 256;

/// The interpreter of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptLine<'a> {
    /// Its path.
    pub interpreter: &'a [u8],
    /// Its first argument: the rest of the line.
    pub argument: Option<&'a [u8]>,
}

impl<'a> ScriptLine<'a> {
    /// Reads the first bytes of a file, of which [`LINE_BYTES_MAX`] count. `None` if they begin no
    /// script, or one whose interpreter the kernel does not find in them.
    pub fn parse(head: &'a [u8]) -> Option<Self> {
        let head = &head[..head.len().min(LINE_BYTES_MAX)];
        let rest = head.strip_prefix(b"#!")?;
        let end = rest.iter().position(|byte| *byte == b'\n');
        let line = trim_blanks(&rest[..end.unwrap_or(rest.len())]);
        let interpreter_end = line.iter().position(|byte| is_blank(*byte));
        let is_cut = end.is_none() && head.len() == LINE_BYTES_MAX;
        if line.is_empty() || line.contains(&0) || (is_cut && interpreter_end.is_none()) {
            return None;
        }
        let (interpreter, argument) = line.split_at(interpreter_end.unwrap_or(line.len()));
        let argument = trim_blanks(argument);
        Some(Self { interpreter, argument: (!argument.is_empty()).then_some(argument) })
    }

    /// The program that `env` starts, if the interpreter is `env`: it is found on `PATH`.
    pub fn started_by_env(&self) -> Option<&'a [u8]> {
        let name = self.interpreter.rsplit(|byte| *byte == b'/').next()?;
        if name != b"env" {
            return None;
        }
        let words = self.argument?.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty());
        let mut words = words.skip_while(|word| word[0] == b'-' || word.contains(&b'='));
        words.next()
    }
}

/// Removes blanks at both ends; a carriage return is none to the kernel.
fn trim_blanks(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|byte| !is_blank(*byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !is_blank(*byte)).map_or(start, |last| last + 1);
    &line[start..end]
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Option<(String, Option<String>)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ScriptLine::parse(head.as_bytes())
            .map(|line| (text(line.interpreter), line.argument.map(text)))
    }

    #[test]
    fn interpreter_and_argument_are_found() {
        for (head, interpreter, argument) in [
            ("#!/bin/sh\necho", "/bin/sh", None),
            ("#! /bin/sh -e -u \nx", "/bin/sh", Some("-e -u")),
            ("#!/usr/bin/env\tpython3", "/usr/bin/env", Some("python3")),
            ("#!a", "a", None),
            ("#!/bin/sh\r\necho", "/bin/sh\r", None),
        ] {
            assert_eq!(parsed(head), Some((interpreter.into(), argument.map(str::to_owned))));
        }
    }

    #[test]
    fn what_names_no_interpreter_is_none() {
        let cut = format!("#!/{}", "a".repeat(LINE_BYTES_MAX));
        for head in ["", "#", "#!", "#!\n", "#! \t\nx", "echo", "#!a\0b\n", &cut] {
            assert_eq!(parsed(head), None, "{head:?}");
        }
        let long_argument = format!("#!/bin/sh {}", "a".repeat(LINE_BYTES_MAX));
        assert_eq!(parsed(&long_argument).expect("an interpreter").0, "/bin/sh");
    }

    #[test]
    fn env_starts_the_first_word_that_is_no_option() {
        for (line, started) in [
            ("#!/usr/bin/env python3\n", Some("python3")),
            ("#!/usr/bin/env -S A=1 perl -w\n", Some("perl")),
            ("#!/usr/bin/env -i\n", None),
            ("#!/usr/bin/env\n", None),
            ("#!/bin/sh python3\n", None),
        ] {
            let line = ScriptLine::parse(line.as_bytes()).expect("a script");
            assert_eq!(line.started_by_env(), started.map(str::as_bytes));
        }
    }
}

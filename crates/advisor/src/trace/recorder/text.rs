// SPDX-License-Identifier: Apache-2.0
//! Text: the calls that `recorder2text` writes, one in a line, of either version of Recorder.
//!
//! ```text
//! 0.012636 0.013648 7 open ( /scratch/f 66 393 )          version 2: the result, then the function
//! 0.012636 0.013648 open 1 0 ( /scratch/f 66 393 )        version 3: the function, its level and kind
//! ```
//! Blanks separate arguments, and paths are not quoted: a path with blanks consists of the
//! arguments that are left between the others. Functions return `None` for text that Recorder does
//! not write.

use std::io::BufRead;

use esker_base::{Error, Result};

use super::call::RecorderCall;

/// Longest line: a call has at most two paths.
const LINE_BYTES_MAX: usize = 1 << 16;

/// Reads the calls of `input`, which errors name `object`. The error that `take` gets says that a call
/// is none that Recorder writes.
///
/// # Errors
/// `Corrupt` with line and byte for a text that is not of `recorder2text`; as `take` and the input
/// answer.
pub fn read_text(
    mut input: impl BufRead,
    object: &str,
    mut take: impl FnMut(&RecorderCall<'_>, &dyn Fn() -> Error) -> Result<()>,
) -> Result<()> {
    let (mut line, mut number, mut position) = (Vec::new(), 0_u64, 0_u64);
    loop {
        line.clear();
        let mut bounded = std::io::Read::take(&mut input, LINE_BYTES_MAX as u64 + 1);
        let bytes = bounded.read_until(b'\n', &mut line);
        let bytes = bytes.map_err(|error| Error::io(error, object))?;
        if bytes == 0 {
            return Ok(());
        }
        number += 1;
        let wrong = || {
            let shown = String::from_utf8_lossy(&line[..line.len().min(80)]);
            let what = "expected a line of `recorder2text`, and found";
            let what = format!("line {number}: {what} {}", shown.trim_end().escape_debug());
            Error::corrupt(object, position, what)
        };
        let text = line.strip_suffix(b"\n").and_then(|text| std::str::from_utf8(text).ok());
        take(&text.and_then(parse_line).ok_or_else(wrong)?, &wrong)?;
        position += bytes as u64;
    }
}

/// Parses a line without its newline.
pub fn parse_line(line: &str) -> Option<RecorderCall<'_>> {
    let (head, arguments) = line.split_once(" (")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    let words: Vec<&str> = head.split(' ').collect();
    let (begin, end, function, result) = match words[..] {
        [begin, end, function, level, kind] => {
            let _: (u32, u32) = (level.parse().ok()?, kind.parse().ok()?);
            (begin, end, function, None)
        }
        [begin, end, result, function] => (begin, end, function, Some(result.parse().ok()?)),
        _ => return None,
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if function.is_empty() || !function.bytes().all(is_name) {
        return None;
    }
    let [begin_ns, end_ns] = [begin, end].map(seconds);
    let (begin_ns, end_ns) = (begin_ns?, end_ns?);
    let arguments = arguments.split(' ').filter(|argument| !argument.is_empty()).collect();
    (begin_ns <= end_ns).then_some(RecorderCall { begin_ns, end_ns, result, function, arguments })
}

/// Nanoseconds of a decimal number of seconds with a fraction.
fn seconds(text: &str) -> Option<u64> {
    text.contains('.').then(|| crate::trace::decimal_seconds::seconds_ns(text.as_bytes()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_versions() {
        let old = "0.012636 0.013648 7 open ( /g/a file 66 393 )";
        let new = "0.012636 0.013648 open 1 0 ( /g/a file 66 393 )";
        for (line, result) in [(old, Some(7)), (new, None)] {
            let parsed = parse_line(line).expect(line);
            assert_eq!((parsed.begin_ns, parsed.end_ns), (12_636_000, 13_648_000));
            assert_eq!((parsed.function, parsed.result), ("open", result));
            assert_eq!((parsed.number(0), parsed.number(1)), (Some(393), Some(66)));
            assert_eq!(parsed.path(0, 2).as_deref(), Some("/g/a file"));
            assert_eq!(
                (parsed.path(0, 4), parsed.path(0, 5), parsed.number(9)),
                (None, None, None)
            );
        }
        let user = parse_line("0.1 0.2 main 0 5 ( )").expect("a function of the user");
        assert!(user.arguments.is_empty());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "0.1 0.2 7 open",
            "0.1 0.2 7 open ( /a 66",
            "0.2 0.1 7 open ( /a 66 )",
            "1 2 7 open ( /a 66 )",
            "-0.1 0.2 7 open ( /a )",
            "0.1 0.2 x open ( /a )",
            "0.1 0.2 op-en 1 0 ( /a )",
            "0.1 0.2 open ( /a )",
            "5.1 read(3</a>, \"\"..., 9) = 9 <0.1>",
        ] {
            assert_eq!(parse_line(text), None, "{text}");
        }
    }
}

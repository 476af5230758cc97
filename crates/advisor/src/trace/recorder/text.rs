// SPDX-License-Identifier: Apache-2.0
//! Line: one call in the text that `recorder2text` writes, of either version of Recorder.
//!
//! ```text
//! 0.012636 0.013648 7 open ( /scratch/f 66 393 )          version 2: the result, then the function
//! 0.012636 0.013648 open 1 0 ( /scratch/f 66 393 )        version 3: the function, its level and kind
//! ```
//! Blanks separate arguments, and paths are not quoted: a path with blanks consists of the
//! arguments that are left between the others. Functions return `None` for text that Recorder does
//! not write.

/// A line without its newline.
#[derive(Debug, PartialEq, Eq)]
pub struct RecorderLine<'a> {
    /// When the call began, since the beginning of the job.
    pub begin_ns: u64,
    /// When it returned.
    pub end_ns: u64,
    /// The number that it returned; version 3 does not say.
    pub result: Option<i64>,
    /// The name.
    pub function: &'a str,
    /// The arguments.
    pub arguments: Vec<&'a str>,
}

impl<'a> RecorderLine<'a> {
    /// Parses `line`.
    pub fn parse(line: &'a str) -> Option<Self> {
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
        (begin_ns <= end_ns).then_some(Self { begin_ns, end_ns, result, function, arguments })
    }

    /// The number that is `from_end` arguments before the last one.
    pub fn number(&self, from_end: usize) -> Option<i64> {
        let index = self.arguments.len().checked_sub(from_end + 1)?;
        self.arguments[index].parse().ok()
    }

    /// The path that consists of the arguments without the first `before` and the last `after`.
    pub fn path(&self, before: usize, after: usize) -> Option<String> {
        let end = self.arguments.len().checked_sub(after)?;
        let path = self.arguments.get(before..end)?.join(" ");
        (!path.is_empty()).then_some(path)
    }
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
            let parsed = RecorderLine::parse(line).expect(line);
            assert_eq!((parsed.begin_ns, parsed.end_ns), (12_636_000, 13_648_000));
            assert_eq!((parsed.function, parsed.result), ("open", result));
            assert_eq!((parsed.number(0), parsed.number(1)), (Some(393), Some(66)));
            assert_eq!(parsed.path(0, 2).as_deref(), Some("/g/a file"));
            assert_eq!(
                (parsed.path(0, 4), parsed.path(0, 5), parsed.number(9)),
                (None, None, None)
            );
        }
        let user = RecorderLine::parse("0.1 0.2 main 0 5 ( )").expect("a function of the user");
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
            assert_eq!(RecorderLine::parse(text), None, "{text}");
        }
    }
}

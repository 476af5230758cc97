// SPDX-License-Identifier: Apache-2.0
//! Line: one line of a log of `strace -f -ttt -T -y`.
//!
//! ```text
//! 1497  1795462097.478314 pwrite64(3</scratch/f>, ""..., 4096, 8192) = 4096 <0.000073>
//! 1497  1795462097.478439 pwrite64(3</scratch/f>, ""..., 4096, 16384 <unfinished ...>
//! 1497  1795462097.478497 <... pwrite64 resumed>) = 4096 <0.000034>
//! 1497  1795462097.478600 --- SIGCHLD {si_signo=SIGCHLD, …} ---
//! 1497  1795462097.478700 +++ exited with 0 +++
//! ```
//! The thread is missing if one process was traced without `-f`, and is `[pid 1497]` in a log on a
//! terminal. Functions return `None` for text that `strace` does not write.

use crate::trace::decimal_seconds::seconds_ns;

const UNFINISHED: &[u8] = b" <unfinished ...>";

/// A line without its newline.
#[derive(Debug, PartialEq, Eq)]
pub struct StraceLine<'a> {
    /// The thread id; 0 if the line has none.
    pub thread: u32,
    /// The time since the Unix epoch.
    pub time_ns: u64,
    /// The event.
    pub event: LineEvent<'a>,
}

/// The event that a line records.
#[derive(Debug, PartialEq, Eq)]
pub enum LineEvent<'a> {
    /// A call from its name to the end of the line.
    Call(&'a [u8]),
    /// The beginning of a call.
    Unfinished(&'a [u8]),
    /// The rest of the call of this name that the thread has begun.
    Resumed(&'a [u8], &'a [u8]),
    /// A signal arrived.
    Signal,
    /// The thread ended.
    Exit,
}

impl<'a> StraceLine<'a> {
    /// Parses `line`.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (thread, rest) = split_thread(line)?;
        let (time, rest) = split_word(rest)?;
        let time_ns = seconds_ns(time)?;
        let event = if rest.starts_with(b"--- ") {
            LineEvent::Signal
        } else if rest.starts_with(b"+++ ") {
            LineEvent::Exit
        } else if let Some(resumed) = rest.strip_prefix(b"<... ") {
            let marker = b" resumed>";
            let at = resumed.windows(marker.len()).position(|window| window == marker)?;
            LineEvent::Resumed(&resumed[..at], &resumed[at + marker.len()..])
        } else if let Some(call) = rest.strip_suffix(UNFINISHED) {
            LineEvent::Unfinished(call)
        } else {
            LineEvent::Call(rest)
        };
        Some(Self { thread, time_ns, event })
    }
}

/// The name of the call that `text` begins with.
pub fn call_name(text: &[u8]) -> Option<&str> {
    let end = text.iter().position(|byte| *byte == b'(')?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let name = text[..end].iter().all(is_name).then_some(&text[..end])?;
    (!name.is_empty()).then_some(std::str::from_utf8(name).ok()?)
}

fn split_thread(line: &[u8]) -> Option<(u32, &[u8])> {
    if let Some(rest) = line.strip_prefix(b"[pid ") {
        let end = rest.iter().position(|byte| *byte == b']')?;
        let number = rest[..end].trim_ascii();
        return Some((number_of(number)?, rest[end + 1..].trim_ascii_start()));
    }
    let (word, rest) = split_word(line)?;
    match word.contains(&b'.') {
        true => Some((0, line)),
        false => Some((number_of(word)?, rest)),
    }
}

fn number_of(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..end], text[end..].trim_ascii_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> StraceLine<'_> {
        StraceLine::parse(line.as_bytes()).expect(line)
    }

    #[test]
    fn lines_of_all_kinds() {
        let line = parsed("12  5.000001 close(3</a b>) = 0 <0.000010>");
        assert_eq!((line.thread, line.time_ns), (12, 5_000_001_000));
        assert_eq!(line.event, LineEvent::Call(b"close(3</a b>) = 0 <0.000010>"));
        let line = parsed("[pid    12] 5.5 read(3</a>,  <unfinished ...>");
        assert_eq!((line.thread, line.time_ns), (12, 5_500_000_000));
        assert_eq!(line.event, LineEvent::Unfinished(b"read(3</a>, "));
        let line = parsed("12 5.5 <... read resumed>\"\"..., 5) = 5 <0.1>");
        assert_eq!(line.event, LineEvent::Resumed(b"read", b"\"\"..., 5) = 5 <0.1>"));
        assert_eq!(parsed("5.5 --- SIGINT {} ---").event, LineEvent::Signal);
        assert_eq!(parsed("5.5 +++ killed by SIGKILL +++").event, LineEvent::Exit);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in
            ["", "hello", "12 hello world", "12  x.5 read(", "99999999999 5.5 a()", "-1 5.5 a"]
        {
            assert_eq!(StraceLine::parse(line.as_bytes()), None, "{line}");
        }
        assert_eq!(seconds_ns(b"1.0000000001"), None);
        assert_eq!(seconds_ns(b"99999999999999999999.0"), None);
        assert_eq!(call_name(b"openat(AT"), Some("openat"));
        assert_eq!((call_name(b"a b("), call_name(b"("), call_name(b"x")), (None, None, None));
    }
}

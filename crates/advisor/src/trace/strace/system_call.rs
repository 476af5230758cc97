// SPDX-License-Identifier: Apache-2.0
//! System call: a call of a log, split into its arguments and its result.
//!
//! Arguments are split at commas outside quotes, brackets and the `<…>` of descriptors, in which
//! `strace` writes `<`, `>` and `"` of names as octal numbers.

use super::line::call_name;
use crate::trace::decimal_seconds::seconds_ns;

/// More arguments than any system call has.
const ARGUMENTS_MAX: usize = 16;

/// Maximum number of `<` without an end in a call: the search for each end goes to the end of the
/// line.
const OPEN_PATHS_MAX: usize = 16;

/// A call from its name to its duration.
#[derive(Debug, PartialEq, Eq)]
pub struct SystemCall<'a> {
    /// The name.
    pub name: &'a str,
    /// The arguments as they are written.
    pub arguments: Vec<&'a [u8]>,
    /// The number that the call returned, or the negative error number; `None` if it never
    /// returned.
    pub result: Option<i64>,
    /// The path of the descriptor that the call returned.
    pub result_path: Option<Vec<u8>>,
    /// Duration of the call; 0 if the log does not have it.
    pub duration_ns: u64,
}

/// A descriptor with its path: `3</scratch/f>`.
#[derive(Debug, PartialEq, Eq)]
pub struct DescriptorArgument {
    /// The number; `None` for `AT_FDCWD`.
    pub number: Option<i32>,
    /// The path; empty if the log has none.
    pub path: Vec<u8>,
}

impl<'a> SystemCall<'a> {
    /// Parses a whole call; `None` for text that `strace` does not write.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let name = call_name(text)?;
        let mut arguments = Vec::new();
        let (mut at, mut from) = (name.len() + 1, name.len() + 1);
        let (mut depth, mut open_paths) = (0_u32, 0);
        loop {
            match *text.get(at)? {
                b'"' => at = end_of_quote(text, at)?,
                b'(' | b'[' | b'{' => depth += 1,
                b'<' => {
                    let end = end_of_path(text, at);
                    open_paths += usize::from(end == at);
                    at = end;
                }
                b')' if depth == 0 => break,
                b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
                b',' if depth == 0 => {
                    arguments.push(text[from..at].trim_ascii());
                    from = at + 1;
                }
                _ => {}
            }
            at += 1;
            if arguments.len() > ARGUMENTS_MAX || open_paths > OPEN_PATHS_MAX {
                return None;
            }
        }
        let last = text[from..at].trim_ascii();
        if !(last.is_empty() && arguments.is_empty()) {
            arguments.push(last);
        }
        let result = text[at + 1..].trim_ascii_start().strip_prefix(b"=")?.trim_ascii();
        let (result, duration_ns) = split_duration(result)?;
        let (value, rest) = match result.iter().position(|byte| matches!(byte, b' ' | b'<')) {
            Some(end) => (&result[..end], result[end..].trim_ascii()),
            None => (result, &b""[..]),
        };
        let result_path = rest.starts_with(b"<").then(|| path_of(rest)).flatten();
        let result = result_of(value, rest)?;
        Some(Self { name, arguments, result, result_path, duration_ns })
    }

    /// The argument at `index`; empty if there are fewer.
    pub fn argument(&self, index: usize) -> &'a [u8] {
        self.arguments.get(index).copied().unwrap_or_default()
    }

    /// The number at `index`.
    pub fn number(&self, index: usize) -> Option<i64> {
        number(self.argument(index))
    }

    /// The descriptor at `index`.
    pub fn descriptor(&self, index: usize) -> Option<DescriptorArgument> {
        let text = self.argument(index);
        let end = text.iter().position(|byte| *byte == b'<').unwrap_or(text.len());
        let path = path_of(&text[end..]).unwrap_or_default();
        if &text[..end] == b"AT_FDCWD" {
            return Some(DescriptorArgument { number: None, path });
        }
        let number = number(&text[..end])?;
        Some(DescriptorArgument { number: Some(i32::try_from(number).ok()?), path })
    }

    /// The text in quotes at `index`.
    pub fn text(&self, index: usize) -> Option<Vec<u8>> {
        let text = self.argument(index).strip_prefix(b"\"")?;
        let end = text.iter().rposition(|byte| *byte == b'"')?;
        unescape(&text[..end])
    }

    /// True if the argument at `index` has the flag `name` between its `|`.
    pub fn has_flag(&self, index: usize, name: &[u8]) -> bool {
        let is_part = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_');
        self.argument(index).split(is_part).any(|flag| flag == name)
    }

    /// The sum of the `iov_len` of the vector at `index`.
    pub fn vector_bytes(&self, index: usize) -> Option<u64> {
        let (text, key) = (self.argument(index), b"iov_len=");
        let mut total = 0_u64;
        for at in 0..text.len().saturating_sub(key.len()) {
            if text[at..].starts_with(key) {
                let digits = &text[at + key.len()..];
                let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
                total = total.checked_add(u64::try_from(number(&digits[..end])?).ok()?)?;
            }
        }
        Some(total)
    }
}

/// The number of `text`: decimal, octal or hexadecimal as in C.
pub fn number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
        (None, Some(digits)) if !digits.is_empty() => i64::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok().or_else(|| text.parse::<u64>().ok().map(u64::cast_signed)),
    }
}

/// The position of the quote that ends the one at `from`.
fn end_of_quote(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        match *text.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
}

/// The position of the `>` that ends the path of a descriptor, or `from` if there is none: `<` also
/// is a part of expressions such as `1<<3`.
fn end_of_path(text: &[u8], from: usize) -> usize {
    let is_after_word = from > 0 && (text[from - 1].is_ascii_alphanumeric());
    if !is_after_word || text.get(from + 1) == Some(&b'<') {
        return from;
    }
    // Devices have a second pair: `1</dev/pts/0<char 136:0>>`.
    let mut depth = 0_u32;
    for (at, byte) in text.iter().enumerate().skip(from) {
        match byte {
            b'<' => depth += 1,
            b'>' if depth == 1 => return at,
            b'>' => depth -= 1,
            _ => {}
        }
    }
    from
}

/// The path between the `<` that begins `text` and its `>`.
fn path_of(text: &[u8]) -> Option<Vec<u8>> {
    let inside = text.strip_prefix(b"<")?;
    let end = inside.iter().position(|byte| matches!(byte, b'<' | b'>'))?;
    unescape(&inside[..end])
}

/// Bytes of a text in which `strace` has escaped some.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            digit @ b'0'..=b'7' => {
                let mut value = u32::from(digit - b'0');
                for _ in 0..2 {
                    let Some(next @ b'0'..=b'7') = bytes.peek().copied() else { break };
                    value = value * 8 + u32::from(next - b'0');
                    bytes.next();
                }
                u8::try_from(value).ok()?
            }
            b'x' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    Some(out)
}

/// A result, and the duration in `<…>` at its end.
fn split_duration(text: &[u8]) -> Option<(&[u8], u64)> {
    if let Some(rest) = text.strip_suffix(b">") {
        let from = rest.iter().rposition(|byte| *byte == b'<')?;
        if let Some(duration) = seconds_ns(&rest[from + 1..]) {
            return Some((rest[..from].trim_ascii(), duration));
        }
    }
    Some((text, 0))
}

/// The number of `value`; that of the error whose name follows -1.
fn result_of(value: &[u8], rest: &[u8]) -> Option<Option<i64>> {
    if value == b"?" {
        return Some(None);
    }
    let value = number(value)?;
    if value != -1 || rest.is_empty() {
        return Some(Some(value));
    }
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    let known = ERRORS.iter().find(|(name, _)| name.as_bytes() == &rest[..end]);
    Some(Some(known.map_or(-ERROR_UNKNOWN, |(_, number)| -number)))
}

/// Stands for errors that are not in [`ERRORS`]: the largest number that Linux returns.
const ERROR_UNKNOWN: i64 = 4_095;

/// Errors of file system calls on Linux.
const ERRORS: [(&str, i64); 38] = [
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("EXDEV", 18),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ETXTBSY", 26),
    ("EFBIG", 27),
    ("ENOSPC", 28),
    ("ESPIPE", 29),
    ("EROFS", 30),
    ("EMLINK", 31),
    ("EPIPE", 32),
    ("ERANGE", 34),
    ("ENAMETOOLONG", 36),
    ("ENOSYS", 38),
    ("ENOTEMPTY", 39),
    ("ELOOP", 40),
    ("ENODATA", 61),
    ("EOVERFLOW", 75),
    ("EOPNOTSUPP", 95),
    ("ETIMEDOUT", 110),
    ("ESTALE", 116),
    ("EDQUOT", 122),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> SystemCall<'_> {
        SystemCall::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn calls_with_paths_and_descriptors() {
        let call = parsed(
            r#"openat(AT_FDCWD</w>, "a, (\"b\\\303\274", O_RDWR|O_CREAT, 0644) = 3</w/a\76> <0.000107>"#,
        );
        assert_eq!((call.name, call.arguments.len()), ("openat", 4));
        assert_eq!((call.result, call.duration_ns), (Some(3), 107_000));
        assert_eq!(call.result_path.as_deref(), Some(&b"/w/a>"[..]));
        assert_eq!(call.text(1), Some("a, (\"b\\ü".as_bytes().to_vec()));
        assert_eq!(
            call.descriptor(0),
            Some(DescriptorArgument { number: None, path: b"/w".to_vec() })
        );
        assert!(call.has_flag(2, b"O_CREAT") && !call.has_flag(2, b"O_CREA"));
        assert_eq!((call.number(3), call.number(2), call.number(9)), (Some(0o644), None, None));
        let call = parsed("pwrite64(3</a,b)>, \"\"..., 4096, 8192) = 4096 <0.1>");
        assert_eq!(call.descriptor(0).map(|found| found.path), Some(b"/a,b)".to_vec()));
        assert_eq!((call.number(2), call.number(3)), (Some(4_096), Some(8_192)));
        let call = parsed("write(1</dev/pts/0<char 136:0>>, \"\"..., 5) = 5 <0.000010>");
        assert_eq!(call.descriptor(0).map(|found| found.path), Some(b"/dev/pts/0".to_vec()));
        assert_eq!(call.number(2), Some(5));
    }

    #[test]
    fn results_of_all_kinds() {
        assert_eq!(parsed("a() = -1 ENOENT (No such file or directory) <0.1>").result, Some(-2));
        assert_eq!(parsed("a(b) = -1 EWEIRD (x)").result, Some(-4_095));
        assert_eq!(parsed("exit_group(0)     = ?").result, None);
        assert_eq!(parsed("a(1) = ? ERESTARTSYS (To be restarted) <0.000001>").result, None);
        assert_eq!(parsed("mmap(NULL, 5) = 0x10 <0.000011>").result, Some(16));
        let call = parsed(
            "writev(3</a>, [{iov_base=\"\"..., iov_len=10}, {iov_base=\"x\", iov_len=20}], 2) = 30",
        );
        assert_eq!((call.vector_bytes(1), call.arguments.len()), (Some(30), 3));
        assert_eq!(parsed("a(1<<3, 4) = 0").arguments.len(), 2);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "a",
            "a(",
            "a(\"",
            "a(\"\\",
            "a(]) = 0",
            "a() 0",
            "a() = x",
            "a(b) = 1 <",
            "a() = ",
        ] {
            let _ = SystemCall::parse(text.as_bytes());
        }
        // Symptom: each `<` without an end was looked for to the end of the line, for minutes a
        // line.
        let open = format!("a({}) = 0", "b<".repeat(100_000));
        assert_eq!(SystemCall::parse(open.as_bytes()), None);
        for text in ["a(", "a(\"", "a(]) = 0", "a() 0", "a() = x", "a() = "] {
            assert_eq!(SystemCall::parse(text.as_bytes()), None, "{text}");
        }
    }
}

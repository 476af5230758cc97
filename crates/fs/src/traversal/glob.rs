// SPDX-License-Identifier: Apache-2.0
//! Glob: shell patterns over bytes, as in fnmatch(3) without flags.
//!
//! `*` matches any bytes, including slashes; `?` one byte; `[a-z]` a set, `[!a-z]` its complement;
//! `\` escapes the next byte. A `[` without `]` stands for itself.

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: Vec<u8>,
    ignore_case: bool,
}

impl Glob {
    /// Creates a pattern; with `ignore_case`, ASCII letters match in either case.
    #[must_use]
    pub fn new(pattern: &[u8], ignore_case: bool) -> Self {
        Self { pattern: pattern.to_vec(), ignore_case }
    }

    /// True if the pattern matches all of `text`. Time is at most the product of both lengths.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        let pattern = &self.pattern[..];
        let (mut at, mut from) = (0, 0);
        // Where to resume if the rest after the last `*` does not match: the `*` takes one byte
        // more.
        let mut retry = None;
        loop {
            if pattern.get(at) == Some(&b'*') {
                retry = Some((at, from));
                at += 1;
                continue;
            }
            match (pattern.get(at), text.get(from)) {
                (None, None) => return true,
                (Some(_), Some(&byte)) => {
                    if let Some(next) = self.fits(at, byte) {
                        (at, from) = (next, from + 1);
                        continue;
                    }
                }
                _ => {}
            }
            match retry {
                Some((star, taken)) if taken < text.len() => {
                    retry = Some((star, taken + 1));
                    (at, from) = (star + 1, taken + 1);
                }
                _ => return false,
            }
        }
    }

    /// Returns the position after the element at `at`, which is not a `*`, if that matches `byte`.
    fn fits(&self, at: usize, byte: u8) -> Option<usize> {
        let pattern = &self.pattern[..];
        let (expected, next) = match pattern[at] {
            b'?' => return Some(at + 1),
            b'[' => match set_end(pattern, at) {
                Some(end) => return self.in_set(&pattern[at + 1..end], byte).then_some(end + 1),
                None => (b'[', at + 1),
            },
            b'\\' if at + 1 < pattern.len() => (pattern[at + 1], at + 2),
            other => (other, at + 1),
        };
        self.same(expected, byte).then_some(next)
    }

    fn same(&self, a: u8, b: u8) -> bool {
        a == b || self.ignore_case && a.eq_ignore_ascii_case(&b)
    }

    fn in_set(&self, set: &[u8], byte: u8) -> bool {
        let (set, negated) = match set {
            [b'!' | b'^', rest @ ..] => (rest, true),
            _ => (set, false),
        };
        let within = |low: u8, high: u8, byte: u8| (low..=high).contains(&byte);
        let mut found = false;
        let mut rest = set;
        while let [low, tail @ ..] = rest {
            let (high, next) = match tail {
                [b'-', high, next @ ..] => (high, next),
                _ => (low, tail),
            };
            found |= within(*low, *high, byte)
                || self.ignore_case
                    && (within(*low, *high, byte.to_ascii_lowercase())
                        || within(*low, *high, byte.to_ascii_uppercase()));
            rest = next;
        }
        found != negated
    }
}

/// Returns the end of the set that starts at `at`; a leading `]` belongs to the set.
fn set_end(pattern: &[u8], at: usize) -> Option<usize> {
    let mut from = at + 1;
    if matches!(pattern.get(from), Some(b'!' | b'^')) {
        from += 1;
    }
    let rest = pattern.get(from + 1..)?;
    rest.iter().position(|&byte| byte == b']').map(|place| from + 1 + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("*", "", true),
            ("*.h", "stdio.h", true),
            ("*.h", "stdio.hh", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYb", false),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("*/src/*", "/a/src/b", true),
            ("A", "a", false),
        ] {
            assert_eq!(
                Glob::new(pattern.as_bytes(), false).matches(text.as_bytes()),
                fits,
                "{pattern} {text}"
            );
        }
        assert!(Glob::new(b"READ[a-z]*", true).matches(b"readME"));
        assert!(Glob::new(b"\xff*", false).matches(b"\xff\xfe"));
    }

    #[test]
    fn hostile_patterns_take_no_longer_than_the_product_of_lengths() {
        let pattern = b"*a".repeat(100);
        assert!(!Glob::new(&pattern, false).matches(&[b'a'; 4_000][..99]));
        assert!(!Glob::new(&[&pattern[..], b"b"].concat(), false).matches(&[b'a'; 4_000]));
    }
}

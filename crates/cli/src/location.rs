// SPDX-License-Identifier: Apache-2.0
//! Location: a place in a stack as users write it: `NAME:/path` or `@SETID:/path`.
//!
//! Names contain no colon, so the first colon ends the name. Paths are bytes, as in file systems.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};
use esker_base::Error;
use esker_fs::stack::path::show;

/// Minimum number of digits that identify a change set.
const SET_DIGITS_MIN: usize = 4;
/// A change set's id has this many hexadecimal digits.
const SET_DIGITS: usize = 32;

/// A stack of change sets, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackArgument {
    /// A published name.
    Name(String),
    /// A change set, by the first digits of its id.
    Set(String),
}

impl fmt::Display for StackArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Set(digits) => write!(f, "@{digits}"),
        }
    }
}

impl StackArgument {
    /// Parses `NAME` or `@SETID`.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "a name is UTF-8 text".to_owned())?;
        if text.is_empty() || text.contains('/') {
            return Err("expected NAME:/path or @SETID:/path, as in `climate:/results`".into());
        }
        let Some(digits) = text.strip_prefix('@') else {
            return Ok(Self::Name(text.to_owned()));
        };
        let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hex || !(SET_DIGITS_MIN..=SET_DIGITS).contains(&digits.len()) {
            return Err(format!(
                "@ takes {SET_DIGITS_MIN} to {SET_DIGITS} hexadecimal digits of a change set's id; \
                 `esker session list` and `esker log` show them"
            ));
        }
        Ok(Self::Set(digits.to_ascii_lowercase()))
    }

    /// The parser for the command line.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|text: OsString| Self::parse(text.as_bytes()))
    }
}

/// A path in a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackPath {
    /// The stack.
    pub stack: StackArgument,
    /// The path; `/` if none was given.
    pub path: Vec<u8>,
}

impl fmt::Display for StackPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.stack, String::from_utf8_lossy(&self.path))
    }
}

impl StackPath {
    /// Parses `NAME`, `NAME:/path` or the same with `@SETID`.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let text = text.as_bytes();
        let (stack, path) = match text.iter().position(|&byte| byte == b':') {
            Some(colon) => (&text[..colon], &text[colon + 1..]),
            None => (text, &b"/"[..]),
        };
        let mut path = path.to_vec();
        if !path.starts_with(b"/") {
            path.insert(0, b'/');
        }
        Ok(Self { stack: StackArgument::parse(stack)?, path })
    }

    /// The parser for the command line.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|text: OsString| Self::parse(&text))
    }

    /// Returns the location of another path in the same stack.
    pub fn with_path(&self, path: &[u8]) -> Self {
        Self { stack: self.stack.clone(), path: path.to_vec() }
    }

    /// Names this location in `error`, which occurred there, instead of only its path or name.
    pub fn in_error(&self, error: Error) -> Error {
        let parent = self.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash);
        let places = [&self.path[..], &self.path[..parent], self.last()];
        let rest = places.into_iter().find_map(|path| {
            let rest = error.context().strip_prefix(&show(path))?;
            rest.strip_prefix(": ").map(str::to_owned)
        });
        match rest {
            Some(rest) => Error::new(error.kind(), rest).within(self),
            None if error.context().contains(&self.to_string()) => error,
            None => error.within(self),
        }
    }

    /// The last component of the path; empty for the root.
    pub fn last(&self) -> &[u8] {
        let end = self.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let start = self.path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        &self.path[start..end]
    }

    /// The location of `name` in the directory at this location.
    pub fn join(&self, name: &[u8]) -> Self {
        let mut path = self.path.clone();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self { stack: self.stack.clone(), path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, String), String> {
        let location = StackPath::parse(OsStr::new(text))?;
        Ok((location.stack.to_string(), String::from_utf8(location.path).expect("UTF-8")))
    }

    #[test]
    fn names_and_sets_are_told_apart() {
        let both = |stack: &str, path: &str| Ok((stack.to_owned(), path.to_owned()));
        assert_eq!(parse("a"), both("a", "/"));
        assert_eq!(parse("a:"), both("a", "/"));
        assert_eq!(parse("a:b/c"), both("a", "/b/c"));
        assert_eq!(parse("a:/x:y"), both("a", "/x:y"));
        assert_eq!(parse("@ABCD:/x"), both("@abcd", "/x"));
        for bad in ["", ":/x", "/x", "/x:y", "@:/x", "@abc", "@wxyz"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_whole_location_once() {
        let location = StackPath::parse(OsStr::new("a:/b/c")).expect("good");
        for said in ["/b/c: gone", "/b: gone", "c: gone", "gone"] {
            let error = location.in_error(Error::new(esker_base::Kind::NotFound, said));
            assert_eq!(error.to_string(), "a:/b/c: gone", "{said}");
        }
    }

    #[test]
    fn last_components_are_found() {
        for (text, last) in [("a:/", ""), ("a:/b", "b"), ("a:/b/c//", "c")] {
            let location = StackPath::parse(OsStr::new(text)).expect("good");
            assert_eq!(location.last(), last.as_bytes());
        }
    }
}

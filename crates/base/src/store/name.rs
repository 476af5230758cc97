// SPDX-License-Identifier: Apache-2.0
//! Names of objects and append logs: the same rules in every store.
//!
//! A name is a UTF-8 path. All stores refuse names that any one of them could not hold, so that a
//! namespace can be copied between kinds of stores.

use crate::{Error, Kind, Result};

/// Maximum bytes of a name: that of an S3 key.
pub const NAME_BYTES_MAX: usize = 1024;

/// Maximum bytes of a component of a name: that of a file name on POSIX.
pub const COMPONENT_BYTES_MAX: usize = 255;

/// The first component under which a POSIX store keeps unfinished objects; no name may use it.
pub(super) const UNFINISHED: &str = "tmp";

const _: () = assert!(COMPONENT_BYTES_MAX <= NAME_BYTES_MAX);

/// Checks the name of an object or append log.
///
/// # Errors
/// `Invalid` for an empty, `.` or `..` component, a control character, the first component `tmp`,
/// or a name or component over its limit.
pub fn check(name: &str) -> Result<()> {
    let refuse = |what: &str| {
        Err(Error::new(Kind::Invalid, format!("the object name {name:?} {what}: choose another")))
    };
    if name.len() > NAME_BYTES_MAX {
        let start: String = name.chars().take(40).collect();
        let what = format!("the object name {start:?}… is over {NAME_BYTES_MAX} bytes");
        return Err(Error::new(Kind::Invalid, what));
    }
    if name.chars().any(char::is_control) {
        return refuse("holds a control character");
    }
    for component in name.split('/') {
        match component {
            "" => return refuse("has an empty component"),
            "." | ".." => return refuse("has a component `.` or `..`"),
            _ if component.len() > COMPONENT_BYTES_MAX => {
                return refuse("has a component that is too long");
            }
            _ => {}
        }
    }
    if name.split('/').next() == Some(UNFINISHED) {
        return refuse("begins with `tmp`, which is reserved for the store");
    }
    Ok(())
}

/// Checks the prefix of a listing: empty, or a name followed by `/`.
///
/// # Errors
/// `Invalid` if it is neither.
pub fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.is_empty() {
        return Ok(());
    }
    match prefix.strip_suffix('/') {
        Some(name) => check(name),
        None => {
            let what = format!("the prefix {prefix:?} is neither empty nor ends in `/`");
            Err(Error::new(Kind::Invalid, what))
        }
    }
}

/// Returns the names directly below `prefix`, each once, from sorted `names` that all start with
/// it.
pub(super) fn directly_below<'a>(
    prefix: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let mut below: Vec<String> = Vec::new();
    for name in names {
        let rest = name.strip_prefix(prefix).unwrap_or(name);
        let first = rest.split('/').next().unwrap_or(rest);
        if below.last().is_none_or(|last| last != first) {
            below.push(first.to_owned());
        }
    }
    // `a` sorts before `a-b` before `a/c`, so the same name may occur in two runs.
    below.sort_unstable();
    below.dedup();
    below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass() {
        for name in ["a", "a/b", "esker.json", "..a", "a..", "ä/日本/🦀", "a b", "temp/x", "a/tmp"]
        {
            check(name).expect(name);
        }
        check(&"a".repeat(COMPONENT_BYTES_MAX)).expect("a component at its limit");
    }

    #[test]
    fn bad_names_are_invalid() {
        let long_name = "a/".repeat(NAME_BYTES_MAX / 2) + "a";
        let long_component = "a".repeat(COMPONENT_BYTES_MAX + 1);
        let bad = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b", "a\nb", "tmp"];
        for name in bad.into_iter().chain(["tmp/a", &long_name, &long_component]) {
            assert_eq!(check(name).expect_err(name).kind(), Kind::Invalid, "{name:?}");
        }
    }

    #[test]
    fn prefixes_end_in_a_slash() {
        check_prefix("").expect("empty");
        check_prefix("a/b/").expect("a prefix");
        for prefix in ["a", "/", "a//", "../"] {
            assert_eq!(check_prefix(prefix).expect_err(prefix).kind(), Kind::Invalid);
        }
    }

    #[test]
    fn names_below_come_once() {
        let names = ["p/a", "p/a-b", "p/a/c", "p/a/d", "p/b/x/y"];
        assert_eq!(directly_below("p/", names), ["a", "a-b", "b"]);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Path text: file names, which are bytes, as UTF-8, which dictionaries hold. A byte that is not
//! part of UTF-8, and a backslash before `x`, become `\xNN`, so that no two paths have one text.

use std::fmt::Write;

/// The text of the path `bytes`.
#[must_use]
pub fn path_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace("\\x", "\\x5cx"));
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("strings grow");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_different_paths_differ() {
        assert_eq!(path_text("/a b/ü".as_bytes()), "/a b/ü");
        assert_eq!(path_text(b"/a\xff/b"), "/a\\xff/b");
        assert_eq!(path_text(b"/a\\xff/b"), "/a\\x5cxff/b");
        assert_eq!(path_text(b"a\\b"), "a\\b");
    }
}

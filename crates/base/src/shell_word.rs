// SPDX-License-Identifier: Apache-2.0
//! Words of shell commands: errors advise commands that users paste, also for paths with blanks.

/// Quotes a word of a command for a shell.
#[must_use]
pub fn shell_word(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_plain = |letter: char| letter.is_alphanumeric() || "@%_-+=:,./".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_that_a_shell_would_split_or_expand_are_quoted() {
        for (word, quoted) in [
            ("/a/b-1", "/a/b-1"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
            ("$x", "'$x'"),
        ] {
            assert_eq!(shell_word(word.as_bytes()), quoted);
        }
    }
}

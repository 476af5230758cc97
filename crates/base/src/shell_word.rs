// SPDX-License-Identifier: Apache-2.0
//! Words of shell commands: errors advise commands that users paste, also for paths with blanks.

/// Quotes a word of a command for a shell. A word with control characters, or with bytes that are
/// no text, is in the form `$'...'`, which Bash, Zsh, Ksh and POSIX.1-2024 know.
#[must_use]
pub fn shell_word(bytes: &[u8]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text,
        _ => return escaped_word(bytes),
    };
    let is_plain = |letter: char| letter.is_alphanumeric() || "@%_-+=:,./".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn escaped_word(bytes: &[u8]) -> String {
    let mut word = "$'".to_owned();
    for &byte in bytes {
        match byte {
            b'\'' | b'\\' => word.extend(['\\', char::from(byte)]),
            b' '..=b'~' => word.push(char::from(byte)),
            // Always three digits, so that a digit that follows is not taken for one of them.
            _ => word.push_str(&format!("\\{byte:03o}")),
        }
    }
    word + "'"
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
            ("größe", "größe"),
        ] {
            assert_eq!(shell_word(word.as_bytes()), quoted);
        }
    }

    #[test]
    fn words_that_are_no_text_reach_the_program_as_they_are() {
        for word in [&b"a\xff1"[..], b"line\nline", b"\x80'\\ \x1b[2J"] {
            let quoted = shell_word(word);
            assert!(quoted.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{quoted}");
            let line = format!("printf %s {quoted}");
            let shell = std::process::Command::new("bash").args(["-c", &line]).output();
            assert_eq!(shell.expect("bash").stdout, word, "{quoted}");
        }
    }
}

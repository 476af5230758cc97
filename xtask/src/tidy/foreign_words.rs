// SPDX-License-Identifier: Apache-2.0
//! Foreign words: a lower crate has no names for concepts of the crates above it. Dependencies
//! alone do not show that: code for a higher concept may grow in a lower crate.

use super::StyleProblem;
use super::rust_source::RustSource;

/// A folder, and the words that no name in it may have.
struct ForeignWords {
    folder: &'static str,
    words: &'static [&'static str],
}

const FOREIGN_WORDS: &[ForeignWords] = &[ForeignWords {
    folder: "crates/table/src/",
    words: &["segment", "segments", "extent", "extents", "inode", "inodes", "directory", "dentry"],
}];

/// No name outside tests contains a word of a higher crate.
pub fn foreign_words(source: &RustSource) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    for rule in FOREIGN_WORDS.iter().filter(|rule| source.path.starts_with(rule.folder)) {
        for token in source.tokens.iter().filter(|token| !token.in_test) {
            if let Some(word) = rule.words.iter().find(|word| has_word(&token.text, word)) {
                let message = format!("`{}`: {} knows no `{word}`", token.text, rule.folder);
                problems.push(StyleProblem::new(&source.path, token.line, message));
            }
        }
    }
    problems
}

/// Returns whether `word` is one of the words of `name`, in any convention; texts have none.
fn has_word(name: &str, word: &str) -> bool {
    if !name.starts_with(|first: char| first.is_alphabetic() || first == '_') {
        return false;
    }
    let mut words = String::new();
    let mut was_lower = false;
    for letter in name.chars() {
        if letter.is_uppercase() && was_lower {
            words.push('_');
        }
        was_lower = letter.is_lowercase();
        words.extend(letter.to_lowercase());
    }
    words.split('_').any(|own| own == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let source = RustSource::parse(path, text).expect("Rust");
        foreign_words(&source).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn names_have_no_words_of_higher_crates() {
        let text = "struct SegmentMap;\nconst SEGMENTS_MAX: u8 = 0;\nfn of_inode() {}\n\
                    fn segmented() { f(\"segment\"); } // segment\n\
                    #[cfg(test)]\nmod tests { fn segment() {} }";
        assert_eq!(lines("crates/table/src/a.rs", text), [1, 2, 3]);
        assert!(lines("crates/extent/src/a.rs", text).is_empty());
    }
}

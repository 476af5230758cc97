// SPDX-License-Identifier: Apache-2.0
//! Rust source: one file as a flat list of tokens, so that a rule is a search for a sequence.
//!
//! Comments and doc comments are removed from the list, strings are one token, and opening and
//! closing delimiters are tokens of their own. `::` is two tokens.
//! Invariants: (1) line numbers count from 1 and never descend; (2) delimiters are balanced.

use std::collections::BTreeSet;
use std::ops::Range;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// One token of a file.
pub struct Token {
    pub text: String,
    /// The line on which it starts.
    pub line: usize,
    /// True if it belongs to a test, or to code built only for tests.
    pub in_test: bool,
    line_end: usize,
}

/// A file with its text and tokens.
pub struct RustSource {
    pub path: String,
    pub text: String,
    pub tokens: Vec<Token>,
}

impl RustSource {
    /// Lexes `text`; the error is the first line that is not valid Rust.
    pub fn parse(path: &str, text: &str) -> Result<Self, usize> {
        let stream: TokenStream =
            text.parse().map_err(|error: proc_macro2::LexError| error.span().start().line)?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        mark_tests(path, &mut tokens);
        Ok(Self { path: path.into(), text: text.into(), tokens })
    }

    /// The number of lines that hold code: not blank and not comment only.
    pub fn code_lines(&self) -> usize {
        let lines: BTreeSet<usize> =
            self.tokens.iter().flat_map(|token| token.line..=token.line_end).collect();
        lines.len()
    }

    /// Indices in `tokens` at which `sequence` starts.
    pub fn find<'a>(&'a self, sequence: &'a [&str]) -> impl Iterator<Item = usize> + 'a {
        let starts = self.tokens.windows(sequence.len()).enumerate();
        starts
            .filter(move |(_, window)| {
                window.iter().zip(sequence).all(|(token, s)| token.text == *s)
            })
            .map(|(start, _)| start)
    }

    /// The contents of every attribute, as ranges of `tokens` without the brackets.
    pub fn attributes(&self) -> Vec<Range<usize>> {
        attributes(&self.tokens)
    }

    /// The index of the delimiter that closes the one at `open`.
    pub fn close_of(&self, open: usize) -> usize {
        close_of(&self.tokens, open)
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let first = group.stream().into_iter().next();
                if group.delimiter() == Delimiter::Bracket && is_ident(first.as_ref(), "doc") {
                    drop_attribute_start(tokens);
                    continue;
                }
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(tokens, open.into(), group.span_open());
                flatten(group.stream(), tokens);
                push(tokens, close.into(), group.span_close());
            }
            other => {
                let span = other.span();
                push(tokens, other.to_string(), span);
            }
        }
    }
}

fn push(tokens: &mut Vec<Token>, text: String, span: Span) {
    let (line, line_end) = (span.start().line, span.end().line);
    tokens.push(Token { text, line, in_test: false, line_end });
}

/// Removes a trailing `#` or `#!`: the lexer turns `/// text` into `#[doc = "text"]`.
fn drop_attribute_start(tokens: &mut Vec<Token>) {
    while tokens.pop_if(|token| token.text == "!" || token.text == "#").is_some() {
        let more = tokens.last().is_some_and(|token| token.text == "#");
        if !more {
            break;
        }
    }
}

fn is_ident(tree: Option<&TokenTree>, name: &str) -> bool {
    matches!(tree, Some(TokenTree::Ident(ident)) if *ident == name)
}

fn attributes(tokens: &[Token]) -> Vec<Range<usize>> {
    let text = |place: usize| tokens.get(place).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    for start in (0..tokens.len()).filter(|start| text(*start) == "#") {
        let open = if text(start + 1) == "!" { start + 2 } else { start + 1 };
        if text(open) == "[" {
            found.push(open + 1..close_of(tokens, open));
        }
    }
    found
}

fn close_of(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return place;
        }
    }
    unreachable!("the lexer balances delimiters")
}

fn mark_tests(path: &str, tokens: &mut [Token]) {
    if is_test_path(path) {
        tokens.iter_mut().for_each(|token| token.in_test = true);
        return;
    }
    for attribute in attributes(tokens) {
        let words: Vec<&str> =
            tokens[attribute.clone()].iter().map(|token| token.text.as_str()).collect();
        let test_only = match words.as_slice() {
            ["test"] => true,
            ["cfg", rest @ ..] => rest.contains(&"test") && !rest.contains(&"not"),
            _ => false,
        };
        if test_only {
            let item = item_after(tokens, attribute.end + 1);
            tokens[item].iter_mut().for_each(|token| token.in_test = true);
        }
    }
}

/// The range from `start` to the end of the item there: its body, or its semicolon.
fn item_after(tokens: &[Token], start: usize) -> Range<usize> {
    let mut place = start;
    while place < tokens.len() {
        match tokens[place].text.as_str() {
            "{" => return start..close_of(tokens, place) + 1,
            ";" => return start..place + 1,
            "(" | "[" => place = close_of(tokens, place) + 1,
            // The attribute was the last element of an enclosing body.
            "}" => break,
            _ => place += 1,
        }
    }
    start..place
}

fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "fuzz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustSource {
        RustSource::parse("crates/a/src/b.rs", text).expect("the test's text is Rust")
    }

    fn words(text: &str) -> Vec<String> {
        parse(text).tokens.into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_doc_comments_leave_no_tokens() {
        let text = "//! a\n\n/// b\n/** c */ // d\n#[doc = \"e\"]\nfn f() /* g */ {}\n";
        assert_eq!(words(text), ["fn", "f", "(", ")", "{", "}"]);
        assert_eq!(words("!#[doc(hidden)] x"), ["!", "x"]);
    }

    #[test]
    fn a_string_is_one_token_that_spans_its_lines() {
        let source = parse("const A: &str = \"x\ny\n\nz\";\n\n// c\n");
        assert_eq!(source.code_lines(), 4);
    }

    #[test]
    fn test_items_are_marked_and_nothing_else() {
        let source = parse(
            "fn a() {} #[cfg(test)] mod tests { fn b() {} } fn c() {} #[test] fn d() {} \
             #[cfg(not(test))] fn e() {} #[cfg(all(test, unix))] use f; fn g() {}",
        );
        let marked = |name| source.tokens.iter().any(|t| t.text == name && t.in_test);
        assert_eq!(
            ["a", "b", "c", "d", "e", "f", "g"].map(marked),
            [false, true, false, true, false, true, false]
        );
    }

    #[test]
    fn whole_files_of_tests_are_marked_by_their_path() {
        for path in ["crates/a/src/b/tests.rs", "crates/a/tests/b.rs", "fuzz/fuzz_targets/b.rs"] {
            let source = RustSource::parse(path, "fn f() {}").expect("Rust");
            assert!(source.tokens.iter().all(|token| token.in_test), "{path}");
        }
    }

    #[test]
    fn what_is_not_rust_names_its_line() {
        assert_eq!(RustSource::parse("a.rs", "fn a() {}\nfn b( {}\n").err(), Some(2));
    }
}

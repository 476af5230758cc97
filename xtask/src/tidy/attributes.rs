// SPDX-License-Identifier: Apache-2.0
//! Attributes: an exception to a lint is expected, with a reason, never merely allowed.

use std::ops::Range;

use super::StyleProblem;
use super::rust_source::RustSource;

/// `#[allow(…)]` remains after its cause is gone; `#[expect(…)]` does not.
pub fn allow_instead_of_expect(source: &RustSource) -> Vec<StyleProblem> {
    let message = "`allow`: use `#[expect(lint, reason = \"…\")]`";
    uses(source, "allow").map(|(line, _)| StyleProblem::new(&source.path, line, message)).collect()
}

/// `#[expect(…)]` must give a reason.
pub fn expect_without_reason(source: &RustSource) -> Vec<StyleProblem> {
    uses(source, "expect")
        .filter(|(_, inside)| !source.tokens[inside.clone()].iter().any(|t| t.text == "reason"))
        .map(|(line, _)| StyleProblem::new(&source.path, line, "`expect` without `reason = \"…\"`"))
        .collect()
}

/// Line and arguments of every `word(…)` inside an attribute, including in `cfg_attr`.
fn uses<'a>(
    source: &'a RustSource,
    word: &'a str,
) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
    let places = source.attributes().into_iter().flatten();
    places
        .filter(move |place| source.tokens[*place].text == word)
        .filter(|place| source.tokens[place + 1].text == "(")
        .map(|place| (source.tokens[place].line, place + 1..source.close_of(place + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&RustSource) -> Vec<StyleProblem>, text: &str) -> Vec<usize> {
        let source = RustSource::parse("a.rs", text).expect("Rust");
        rule(&source).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn allow_is_refused_everywhere() {
        let text = "#![allow(dead_code)]\n#[cfg_attr(x, allow(y))]\nfn f() { allow(1); }\n";
        assert_eq!(lines(allow_instead_of_expect, text), [1, 2]);
        assert!(lines(allow_instead_of_expect, "const A: &str = \"#[allow(a)]\";").is_empty());
    }

    #[test]
    fn expect_has_a_reason() {
        let text = "#[expect(dead_code)]\nfn f() { x.expect(\"y\"); }\n\
                    #[expect(dead_code, reason = \"z\")]\nfn g() {}\n";
        assert_eq!(lines(expect_without_reason, text), [1]);
    }
}

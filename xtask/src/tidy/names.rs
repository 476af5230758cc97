// SPDX-License-Identifier: Apache-2.0
//! Names: a type is understood in a stack trace without its path, and a verb says the act.
//!
//! Types are the structs, enums, traits, unions and aliases of `crates/*/src` and `xtask/src`,
//! without those of tests and of function bodies.

use std::collections::BTreeMap;

use super::StyleProblem;
use super::rust_source::RustSource;

/// Names that every crate may define.
const COMMON_NAMES: &[&str] = &["Error", "Options"];

/// Crates that may define a type of one name.
const CRATES_MAX: usize = 2;

/// The share of type names that may be single words.
const SINGLE_WORD_PERCENT_MAX: usize = 35;

/// Verbs that do not say what a function does.
const VAGUE_VERBS: &[&str] =
    &["settle", "tell", "hear", "note", "shape", "place", "look", "make_do", "regain"];

const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait", "union", "type"];

struct TypeName<'a> {
    name: &'a str,
    krate: &'a str,
    path: &'a str,
    line: usize,
}

/// No crate defines a type name twice, no more than two crates define the same one, and most names
/// have two words.
pub fn type_names(sources: &[RustSource]) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    let mut by_name: BTreeMap<&str, Vec<TypeName>> = BTreeMap::new();
    for found in sources.iter().flat_map(types) {
        by_name.entry(found.name).or_default().push(found);
    }
    let all: usize = by_name.values().map(Vec::len).sum();
    let single_words = by_name.iter().filter(|(name, _)| is_single_word(name));
    let single_words: usize = single_words.map(|(_, found)| found.len()).sum();
    for (name, found) in &by_name {
        if COMMON_NAMES.contains(name) {
            continue;
        }
        for (index, this) in found.iter().enumerate() {
            let of_crate = found[..index].iter().find(|other| other.krate == this.krate);
            let message = if let Some(other) = of_crate {
                format!("type `{name}` is also defined in {}:{}", other.path, other.line)
            } else if index >= CRATES_MAX {
                format!("type `{name}` is defined in more than {CRATES_MAX} crates")
            } else {
                continue;
            };
            problems.push(StyleProblem::new(this.path, this.line, message));
        }
    }
    if single_words * 100 > all * SINGLE_WORD_PERCENT_MAX {
        let message = format!(
            "{single_words} of {all} type names are single words, over {SINGLE_WORD_PERCENT_MAX} %"
        );
        problems.push(StyleProblem::new("crates", 1, message));
    }
    problems
}

/// No function is called by a verb that needs its body to be understood.
pub fn vague_verbs(source: &RustSource) -> Vec<StyleProblem> {
    if crate_of(&source.path).is_none() {
        return Vec::new();
    }
    let names = source.find(&["fn"]).filter_map(|at| source.tokens.get(at + 1));
    names
        .filter(|name| !name.in_test)
        .filter_map(|name| {
            let verb = VAGUE_VERBS.iter().find(|verb| begins_with_word(&name.text, verb))?;
            let message = format!("`fn {}`: `{verb}` does not say what it does", name.text);
            Some(StyleProblem::new(&source.path, name.line, message))
        })
        .collect()
}

fn begins_with_word(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn crate_of(path: &str) -> Option<&str> {
    if path.starts_with("xtask/src/") {
        return Some("xtask");
    }
    let (krate, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    rest.starts_with("src/").then_some(krate)
}

/// The types that a file defines outside blocks, in order.
fn types(source: &RustSource) -> Vec<TypeName<'_>> {
    let Some(krate) = crate_of(&source.path) else { return Vec::new() };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = source.tokens.get(at) {
        if token.text == "{" {
            at = source.close_of(at);
        } else if TYPE_KEYWORDS.contains(&token.text.as_str())
            && !token.in_test
            && let Some(name) = source.tokens.get(at + 1)
            && name.text.starts_with(char::is_uppercase)
        {
            found.push(TypeName { name: &name.text, krate, path: &source.path, line: name.line });
        }
        at += 1;
    }
    found
}

fn is_single_word(name: &str) -> bool {
    !name.chars().skip(1).any(char::is_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> RustSource {
        RustSource::parse(path, text).expect("Rust")
    }

    #[test]
    fn a_type_has_one_name_in_a_crate() {
        let sources = [
            source("crates/a/src/b.rs", "struct RowPlace;\nimpl X for Y { type RowPlace = u8; }"),
            source("crates/a/src/c.rs", "#[cfg(test)]\nmod tests { enum RowPlace {} }\n"),
            source("crates/a/tests/c.rs", "enum RowPlace {}\n"),
        ];
        assert_eq!(type_names(&sources), []);
        let again = [sources, [(); 3].map(|()| source("crates/a/src/d.rs", "\nenum RowPlace {}"))];
        let problems = type_names(&again.into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(problems.len(), 3);
        assert!(problems.iter().all(|problem| problem.line == 2));
    }

    #[test]
    fn a_type_name_is_in_two_crates_at_most() {
        let of = |krate: &str| source(&format!("crates/{krate}/src/b.rs"), "trait RowPlace {}");
        assert_eq!(type_names(&[of("a"), of("b")]), []);
        assert_eq!(type_names(&[of("a"), of("b"), of("c")]).len(), 1);
    }

    #[test]
    fn most_type_names_have_two_words() {
        let of = |text| type_names(&[source("crates/a/src/b.rs", text)]).len();
        assert_eq!(of("struct A; struct BTree; struct RowPlace;"), 0);
        assert_eq!(of("struct A; struct Tree; struct RowPlace;"), 1);
    }

    #[test]
    fn vague_verbs_begin_names() {
        let text = "fn look_at() {}\nfn lookup() {}\nfn note() {}\nfn notify() {}\n\
                    #[cfg(test)]\nmod tests { fn tell() {} }";
        let lines: Vec<usize> = vague_verbs(&source("crates/a/src/b.rs", text))
            .into_iter()
            .map(|problem| problem.line)
            .collect();
        assert_eq!(lines, [1, 3]);
        assert_eq!(vague_verbs(&source("crates/a/tests/b.rs", text)), []);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Surface: the functions that an engine crate offers to other crates are few, and do not grow.
//!
//! A function counts if it is `pub` and free in a module that is `pub` up to the root, or if a
//! public module re-exports it, or if it is a `pub` method of a reachable type: one that such a
//! module defines or re-exports, or that the signature of a counted function names. Tests and items
//! behind a feature do not count. Types have one name in a crate (`names.rs`), so names suffice.

use std::collections::{BTreeMap, BTreeSet};

use super::StyleProblem;
use super::rust_source::{RustSource, Token};

/// Crates, and the maximum number of functions that each offers: a ratchet, which is lowered when
/// the number shrinks.
const FUNCTIONS_MAX: &[(&str, usize)] = &[("table", 95)];

const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait", "union", "type"];
const FN_QUALIFIERS: &[&str] = &["const", "unsafe", "async"];

/// A public function, and the words of its signature.
struct PublicFn<'a> {
    /// The type whose method it is.
    owner: Option<&'a str>,
    name: &'a str,
    signature: BTreeSet<&'a str>,
    is_in_public_module: bool,
}

/// Public items of a crate.
#[derive(Default)]
struct CrateItems<'a> {
    functions: Vec<PublicFn<'a>>,
    /// Public types, wherever they are.
    types: BTreeSet<&'a str>,
    /// Names that public modules define or re-export.
    reachable: BTreeSet<&'a str>,
}

/// Checks that no crate of [`FUNCTIONS_MAX`] offers more functions than it may.
pub fn public_functions(sources: &[RustSource]) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    for (krate, max) in FUNCTIONS_MAX {
        let folder = format!("crates/{krate}/src/");
        let files: BTreeMap<&str, &RustSource> = sources
            .iter()
            .filter_map(|source| Some((source.path.strip_prefix(&folder)?, source)))
            .collect();
        let count = count_functions(&files);
        if count > *max {
            let message = format!(
                "other crates can call {count} functions of `{krate}`, over {max}: make those that \
                 none needs `pub(crate)`, or their modules private"
            );
            problems.push(StyleProblem::new(&format!("{folder}lib.rs"), 1, message));
        }
    }
    problems
}

/// Counts the functions of the crate whose `files` these are, by their paths below `src`.
fn count_functions(files: &BTreeMap<&str, &RustSource>) -> usize {
    let mut public = BTreeSet::new();
    let mut pending = vec!["lib.rs".to_owned()];
    while let Some(path) = pending.pop() {
        let Some((path, source)) = files.get_key_value(path.as_str()) else { continue };
        let folder = match path.rsplit_once('/') {
            _ if *path == "lib.rs" => String::new(),
            Some((folder, "mod.rs")) => format!("{folder}/"),
            _ => format!("{}/", path.trim_end_matches(".rs")),
        };
        for module in public_modules(&source.tokens) {
            pending.push(format!("{folder}{module}.rs"));
            pending.push(format!("{folder}{module}/mod.rs"));
        }
        public.insert(*path);
    }
    let mut items = CrateItems::default();
    for (path, source) in files {
        collect(source, 0..source.tokens.len(), public.contains(path), &mut items);
    }
    count_reachable(&items)
}

/// The modules in files of their own that `tokens` declare public.
fn public_modules(tokens: &[Token]) -> impl Iterator<Item = &str> {
    tokens.windows(4).filter_map(|window| match window {
        [public, keyword, name, end] => {
            (public.text == "pub" && keyword.text == "mod" && end.text == ";")
                .then_some(name.text.as_str())
        }
        _ => None,
    })
}

/// Adds types that signatures of counted functions name, until there are no more.
fn count_reachable(items: &CrateItems) -> usize {
    let mut reachable = items.reachable.clone();
    loop {
        let counted = items.functions.iter().filter(|function| match function.owner {
            Some(owner) => reachable.contains(owner),
            None => function.is_in_public_module || reachable.contains(function.name),
        });
        let (mut count, mut named) = (0, BTreeSet::<&str>::new());
        for function in counted {
            count += 1;
            named.extend(function.signature.intersection(&items.types));
        }
        let before = reachable.len();
        reachable.extend(named);
        if reachable.len() == before {
            return count;
        }
    }
}

/// Collects the public items among the tokens of `range`, which are those of one module.
fn collect<'a>(
    source: &'a RustSource,
    range: std::ops::Range<usize>,
    is_public: bool,
    items: &mut CrateItems<'a>,
) {
    let text = |at: usize| source.tokens.get(at).map_or("", |token| token.text.as_str());
    let mut at = range.start;
    while at < range.end {
        let is_public_item = text(at) == "pub" && text(at + 1) != "(";
        let next = at + usize::from(text(at) == "pub");
        match text(next) {
            _ if source.tokens[at].in_test => at += 1,
            "#" => {
                let open = next + 1 + usize::from(text(next + 1) == "!");
                let close = source.close_of(open);
                let behind_feature = (open..close).any(|at| text(at) == "feature");
                at = close + 1;
                if behind_feature && text(open + 1) == "cfg" {
                    at = item_end(source, at);
                }
            }
            "mod" if text(next + 2) == "{" => {
                let close = source.close_of(next + 2);
                collect(source, next + 3..close, is_public && is_public_item, items);
                at = close + 1;
            }
            "use" if is_public_item => {
                let end = item_end(source, next);
                if is_public {
                    items.reachable.extend((next..end).map(text));
                }
                at = end;
            }
            "impl" => at = collect_methods(source, next, items),
            keyword if TYPE_KEYWORDS.contains(&keyword) => {
                if is_public_item {
                    items.types.insert(text(next + 1));
                }
                if is_public_item && is_public {
                    items.reachable.insert(text(next + 1));
                }
                at = item_end(source, next);
            }
            _ => match function_at(source, next) {
                Some(function) => {
                    if is_public_item {
                        let is_in_public_module = is_public;
                        items.functions.push(PublicFn { is_in_public_module, ..function });
                    }
                    at = item_end(source, next);
                }
                None if matches!(text(at), "{" | "(" | "[") => at = source.close_of(at) + 1,
                None => at += 1,
            },
        }
    }
}

/// Collects the public methods of the `impl` at `start`; returns its end.
fn collect_methods<'a>(source: &'a RustSource, start: usize, items: &mut CrateItems<'a>) -> usize {
    let text = |at: usize| source.tokens[at].text.as_str();
    let end = item_end(source, start);
    let open = (start..end).find(|at| text(*at) == "{").unwrap_or(end);
    // The first name with a capital that is a type of the crate; generics name none before it.
    let owner = (start..open).map(text).find(|word| is_type_name(word));
    let mut at = open + 1;
    while at < end {
        match text(at) {
            "pub" if text(at + 1) != "(" && !source.tokens[at].in_test => {
                if let Some(function) = function_at(source, at + 1) {
                    items.functions.push(PublicFn { owner, ..function });
                }
                at += 1;
            }
            "{" => at = source.close_of(at) + 1,
            _ => at += 1,
        }
    }
    end
}

/// The function that begins at `start`, after `pub`.
fn function_at(source: &RustSource, start: usize) -> Option<PublicFn<'_>> {
    let text = |at: usize| source.tokens.get(at).map_or("", |token| token.text.as_str());
    let keyword = (start..).find(|at| !FN_QUALIFIERS.contains(&text(*at)))?;
    if text(keyword) != "fn" {
        return None;
    }
    let end = (keyword..source.tokens.len()).find(|at| matches!(text(*at), "{" | ";"))?;
    let signature = (keyword + 2..end).map(text).collect();
    Some(PublicFn { owner: None, name: text(keyword + 1), signature, is_in_public_module: false })
}

/// The index after the item that begins at `start`: after its body, or its semicolon.
fn item_end(source: &RustSource, start: usize) -> usize {
    let mut at = start;
    let is_use = source.tokens.get(at).is_some_and(|token| token.text == "use");
    while let Some(token) = source.tokens.get(at) {
        match token.text.as_str() {
            ";" => return at + 1,
            "{" if !is_use => return source.close_of(at) + 1,
            "{" | "(" | "[" => at = source.close_of(at) + 1,
            _ => at += 1,
        }
    }
    at
}

fn is_type_name(word: &str) -> bool {
    word.len() > 1 && word.starts_with(char::is_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(files: &[(&str, &str)]) -> usize {
        let sources: Vec<RustSource> =
            files.iter().map(|(path, text)| RustSource::parse(path, text).expect("Rust")).collect();
        count_functions(&sources.iter().map(|source| (source.path.as_str(), source)).collect())
    }

    #[test]
    fn functions_of_public_modules_count() {
        let lib = "pub mod a; mod b; #[cfg(feature = \"x\")] pub mod c { pub fn f() {} } \
                   pub mod d { pub fn g() {} fn h() {} } mod e { pub fn i() {} }";
        let module = "pub const fn f() {} pub(crate) fn g() {} fn h() {} \
                      #[cfg(test)] mod tests { pub fn i() {} }";
        assert_eq!(count(&[("lib.rs", lib), ("a.rs", module), ("b/mod.rs", module)]), 2);
    }

    #[test]
    fn methods_of_reachable_types_count() {
        let lib = "pub mod a; mod b; pub use b::Shown;";
        let a = "pub struct Own; impl Own { pub fn f(&self) -> Named { x } fn g() {} } \
                 impl Clone for Own { fn clone(&self) -> Self { x } }";
        let b = "pub struct Shown; impl<'a> Shown { pub fn f() {} pub(crate) fn g() {} } \
                 pub struct Named; impl Named { pub fn f() { pub fn inner() {} } } \
                 pub struct Hidden; impl Hidden { pub fn f() {} }";
        assert_eq!(count(&[("lib.rs", lib), ("a.rs", a), ("b.rs", b)]), 3);
    }

    #[test]
    fn a_function_that_the_root_exports_counts() {
        let lib = "mod a; pub use a::{f, g};";
        assert_eq!(count(&[("lib.rs", lib), ("a.rs", "pub fn f() {} pub fn h() {}")]), 1);
    }
}

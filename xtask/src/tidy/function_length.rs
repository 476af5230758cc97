// SPDX-License-Identifier: Apache-2.0
//! Function length: a function fits a screen. Longer ones are listed, and may only shrink.
//!
//! The list has a line `path name lines` for every function over the limit. `shrink` lowers and
//! removes entries; it never adds or raises one, so a new long function needs a manual edit of the
//! list, which reviewers see.

use std::collections::BTreeMap;

use super::StyleProblem;
use super::rust_source::RustSource;
use super::tree::SourceTree;

/// Path of the list of long functions.
pub const LIST_PATH: &str = "xtask/long_functions.txt";

/// From the line of `fn` to the line of the closing brace, both included.
const LINES_MAX: usize = 70;

/// Path and name of a function; several `impl`s of one file may share it.
type FunctionKey = (String, String);

/// A function's body, measured.
#[derive(Debug, PartialEq, Eq)]
struct FunctionSpan {
    name: String,
    line: usize,
    lines: usize,
}

/// Checks that no function is longer than a screen, or than its entry in the list, and that no
/// entry is out of date.
pub fn function_length(tree: &SourceTree, sources: &[RustSource]) -> Vec<StyleProblem> {
    let mut listed = parse_list(tree.text(LIST_PATH).unwrap_or_default());
    let mut problems = Vec::new();
    for (key, found) in long_functions(sources) {
        let mut entries = listed.remove(&key).unwrap_or_default().into_iter();
        for function in found {
            let lines_max = entries.next().unwrap_or(LINES_MAX);
            if function.lines > lines_max {
                let message =
                    format!("`{}` is {} lines, over {lines_max}", function.name, function.lines);
                problems.push(StyleProblem::new(&key.0, function.line, message));
            } else if function.lines < lines_max {
                problems.push(out_of_date(&key));
            }
        }
        problems.extend(entries.map(|_| out_of_date(&key)));
    }
    problems.extend(listed.keys().map(out_of_date));
    problems
}

/// The list with every entry lowered to the present length of its function, or removed.
pub fn shrink(tree: &SourceTree, sources: &[RustSource]) -> String {
    let listed = parse_list(tree.text(LIST_PATH).unwrap_or_default());
    let mut list = String::new();
    for (key, found) in long_functions(sources) {
        let entries = listed.get(&key).map_or(&[][..], Vec::as_slice);
        for (function, entry) in found.iter().zip(entries) {
            list += &format!("{} {} {}\n", key.0, key.1, function.lines.min(*entry));
        }
    }
    list
}

fn out_of_date(key: &FunctionKey) -> StyleProblem {
    let message = format!(
        "`{}` of {} is shorter than listed or gone: run `cargo xtask tidy --bless`",
        key.1, key.0
    );
    StyleProblem::new(LIST_PATH, 1, message)
}

/// Entries by function, longest first.
fn parse_list(text: &str) -> BTreeMap<FunctionKey, Vec<usize>> {
    let mut listed: BTreeMap<FunctionKey, Vec<usize>> = BTreeMap::new();
    for line in text.lines() {
        if let [path, name, lines] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(lines) = lines.parse()
        {
            listed.entry((path.into(), name.into())).or_default().push(lines);
        }
    }
    listed.values_mut().for_each(|lines| lines.sort_unstable_by(|a, b| b.cmp(a)));
    listed
}

/// Functions over the limit by path and name, longest first.
fn long_functions(sources: &[RustSource]) -> BTreeMap<FunctionKey, Vec<FunctionSpan>> {
    let mut long: BTreeMap<FunctionKey, Vec<FunctionSpan>> = BTreeMap::new();
    for source in sources {
        for function in functions(source).into_iter().filter(|f| f.lines > LINES_MAX) {
            let key = (source.path.clone(), function.name.clone());
            long.entry(key).or_default().push(function);
        }
    }
    long.values_mut()
        .for_each(|found| found.sort_by_key(|function| std::cmp::Reverse(function.lines)));
    long
}

/// Every function with a body in a file, including nested ones and those inside macros.
fn functions(source: &RustSource) -> Vec<FunctionSpan> {
    let mut found = Vec::new();
    for start in source.find(&["fn"]) {
        let Some(name) = source.tokens.get(start + 1) else { continue };
        // `fn(u8)` is a type and `fn $name` part of a macro.
        if !name.text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            continue;
        }
        let mut place = start + 2;
        while let Some(token) = source.tokens.get(place) {
            match token.text.as_str() {
                "(" | "[" => place = source.close_of(place) + 1,
                "{" => {
                    let line = source.tokens[start].line;
                    let lines = source.tokens[source.close_of(place)].line - line + 1;
                    found.push(FunctionSpan { name: name.text.clone(), line, lines });
                    break;
                }
                ";" | ")" | "]" | "}" => break,
                _ => place += 1,
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustSource {
        RustSource::parse("a.rs", text).expect("Rust")
    }

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    fn problems(list: &str, code: &str) -> Vec<String> {
        let tree = SourceTree::of_files(&[(LIST_PATH, list)]);
        let problems = function_length(&tree, &[parse(code)]);
        problems.into_iter().map(|problem| problem.path).collect()
    }

    #[test]
    fn bodies_are_measured_and_signatures_counted() {
        let source = parse(
            "trait T { fn a(&self); }\nfn b(\n  f: fn(u8) -> u8,\n  n: [u8; { 3 }],\n) {\n\
             fn c() {}\n}\n",
        );
        let measured: Vec<_> =
            functions(&source).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(measured, [("b".into(), 2, 6), ("c".into(), 6, 1)]);
    }

    #[test]
    fn a_long_function_fails_unless_listed() {
        assert!(problems("", &function("f", LINES_MAX)).is_empty());
        assert_eq!(problems("", &function("f", LINES_MAX + 1)), ["a.rs"]);
        assert!(problems("a.rs f 80\n", &function("f", 80)).is_empty());
        assert_eq!(problems("a.rs f 80\n", &function("f", 81)), ["a.rs"]);
    }

    #[test]
    fn an_entry_follows_its_function_down() {
        assert_eq!(problems("a.rs f 80\n", &function("f", 79)), [LIST_PATH]);
        assert_eq!(problems("a.rs f 80\n", &function("f", 20)), [LIST_PATH]);
    }

    #[test]
    fn functions_of_one_name_are_matched_by_length() {
        let code = function("f", 90) + &function("f", 80);
        assert!(problems("a.rs f 80\na.rs f 90\n", &code).is_empty());
        assert_eq!(problems("a.rs f 90\n", &code), ["a.rs"]);
    }

    #[test]
    fn shrinking_never_admits_or_raises() {
        let code = function("f", 90) + &function("g", 75) + &function("h", 80);
        let tree = SourceTree::of_files(&[(LIST_PATH, "a.rs f 85\na.rs g 99\na.rs gone 99\n")]);
        assert_eq!(shrink(&tree, &[parse(&code)]), "a.rs f 85\na.rs g 75\n");
    }
}

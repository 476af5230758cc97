// SPDX-License-Identifier: Apache-2.0
//! `esker.h` is written by hand: it declares what the library exports, no more and no less, every
//! kind of error with its number, and the programs of the tests call every function. The same holds
//! for the 74 functions of DeltaFS.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use esker_base::Kind;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text_of(file: &Path) -> String {
    fs::read_to_string(file).expect("the file is text")
}

fn texts_in(name: &str) -> String {
    let files = fs::read_dir(folder(name)).expect("the folder is there");
    files.map(|file| text_of(&file.expect("the folder can be listed").path())).collect()
}

/// The names that begin with `esker_` and stand before an opening bracket.
fn called(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in text.split('(') {
        let start = part.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &part[start.map_or(0, |start| start + 1)..];
        if name.starts_with("esker_") {
            names.insert(name.to_owned());
        }
    }
    names
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code += part.split_once("*/").map_or("", |(_, code)| code);
    }
    code
}

fn declared() -> BTreeSet<String> {
    let header = text_of(&folder("include/esker.h"));
    called(&without_comments(&header))
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let source = texts_in("src");
    let exported: BTreeSet<String> = source
        .split("extern \"C\" fn ")
        .skip(1)
        .filter_map(|rest| rest.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("esker_"))
        .collect();
    assert!(exported.len() > 100, "{}", exported.len());
    assert_eq!(declared(), exported);
}

#[test]
fn the_programs_call_every_function() {
    let programs = called(&texts_in("tests/programs"));
    let uncalled: Vec<_> = declared().difference(&programs).cloned().collect();
    assert!(uncalled.is_empty(), "{uncalled:?}");
}

#[test]
fn the_header_has_every_kind_of_error() {
    let header = text_of(&folder("include/esker.h"));
    for kind in Kind::ALL {
        let mut name = String::from("ESKER");
        for letter in format!("{kind:?}").chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        let line = format!(" {name} = {}", kind.exit_code());
        let found = header
            .lines()
            .find(|text| text.contains(&format!("{line},")) || text.contains(&format!("{line} ")));
        assert!(found.is_some(), "{line}");
    }
}

#[test]
fn the_interface_of_deltafs_is_complete() {
    let header = text_of(&folder("include/esker/deltafs_api.h"));
    let defined = header.split("static inline ").skip(1).filter_map(|rest| rest.split_once('('));
    let names = defined.filter_map(|(start, _)| start.rsplit([' ', '*']).next());
    let defined: BTreeSet<_> = names.filter(|name| name.starts_with("deltafs_")).collect();
    assert_eq!(defined.len(), 74, "{defined:?}");
    let program = text_of(&folder("tests/programs/deltafs.c"));
    let uncalled: Vec<_> =
        defined.iter().filter(|name| !program.contains(&format!("{name}("))).collect();
    assert!(uncalled.is_empty(), "{uncalled:?}");
}

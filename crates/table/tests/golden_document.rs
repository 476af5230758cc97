// SPDX-License-Identifier: Apache-2.0
//! Examples of bytes in docs/format, with which tests of this crate and of `extent` compare what
//! the encoders write.

use std::fmt::Write;
use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the fence after `<!-- golden: name -->` in a document of docs/format.
pub fn fence(document: &str, name: &str) -> String {
    let path = root().join("docs/format").join(document);
    let text = std::fs::read_to_string(&path).expect("a document");
    let marker = format!("<!-- golden: {name} -->");
    let after = text.split_once(&marker).unwrap_or_else(|| panic!("{document} has no {marker}")).1;
    let fence = after.split("```").nth(1).expect("a fence after the marker");
    fence.split_once('\n').expect("lines in the fence").1.to_owned()
}

pub fn parse_hex(text: &str) -> Vec<u8> {
    let digits: String = text
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
        .collect();
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
        .collect()
}

pub fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(32) {
        line.iter().for_each(|byte| write!(out, "{byte:02x}").expect("a string grows"));
        out.push('\n');
    }
    out
}

pub fn assert_documented(document: &str, name: &str, bytes: &[u8]) {
    let fenced = fence(document, name);
    let documented = parse_hex(&fenced);
    if documented != bytes && std::env::var_os("ESKER_BLESS").is_some() {
        let path = root().join("docs/format").join(document);
        let text = std::fs::read_to_string(&path).expect("a document");
        let marker = format!("<!-- golden: {name} -->");
        let (before, after) = text.split_once(&marker).expect("the marker that was found");
        let after =
            after.replacen(&format!("\n{fenced}```"), &format!("\n{}```", to_hex(bytes)), 1);
        std::fs::write(&path, format!("{before}{marker}{after}")).expect("write");
        return;
    }
    assert_eq!(to_hex(&documented), to_hex(bytes), "{document}: {name} is now\n{}", to_hex(bytes));
}

// SPDX-License-Identifier: Apache-2.0
//! Golden bytes: the encoders still write exactly the bytes that docs/format shows.
//!
//! An example in a document is a fence of hexadecimal digits, with comments after `#`, that follows
//! a line `<!-- golden: NAME -->`. Bytes that older readers cannot read need a new format version.

use std::path::Path;

/// Checks that the example `name` of a docs/format document consists of `bytes`; a failure shows
/// them.
pub fn assert_documented(document: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format");
    let text = std::fs::read_to_string(folder.join(document)).expect("a document");
    let marker = format!("<!-- golden: {name} -->");
    let after = text.split_once(&marker).unwrap_or_else(|| panic!("{document} has no {marker}")).1;
    let fence = after.split("```").nth(1).expect("a fence after the marker");
    let digits: String = fence
        .lines()
        .skip(1)
        .flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
        .collect();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits, hex, "{document}: {name} differs");
}

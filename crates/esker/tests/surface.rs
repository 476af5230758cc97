// SPDX-License-Identifier: Apache-2.0
//! The interface stays small enough to be read.

/// Maximum number of public methods of a type.
const METHODS_MAX: usize = 45;

#[test]
fn no_type_has_more_methods_than_a_reader_remembers() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a source");
        // A type's methods are in one file.
        let mut methods = std::collections::BTreeMap::<&str, usize>::new();
        let mut of = "";
        for line in text.lines() {
            if line.starts_with("impl") {
                of = line;
            } else if line.starts_with("    pub fn ") {
                *methods.entry(of).or_default() += 1;
            }
        }
        for (of, count) in methods {
            assert!(count <= METHODS_MAX, "{}: {of} has {count} methods", path.display());
        }
    }
}

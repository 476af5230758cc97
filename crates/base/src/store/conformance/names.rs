// SPDX-License-Identifier: Apache-2.0
//! Names and listings.

use super::{CheckFolder, assert_kind};
use crate::Kind;

pub(super) fn unicode_names(place: &CheckFolder) {
    let mut leaves =
        ["Ä/ö", "日本/語", "🦀", "a b", "%41", "a+b", "#?&=", "'\"<>", "a\\b", "~x", "*"];
    for leaf in leaves {
        place.put(leaf, leaf.as_bytes());
        assert_eq!(place.get(leaf), leaf.as_bytes(), "{leaf}");
        assert_eq!(place.store.size(&place.name(leaf)).expect(leaf), leaf.len() as u64);
    }
    leaves.sort_unstable();
    let listed = place.store.list(&place.prefix).expect("list");
    let listed: Vec<&str> =
        listed.iter().filter_map(|info| info.name.strip_prefix(&place.prefix)).collect();
    assert_eq!(listed, leaves);
    for leaf in leaves {
        place.store.delete(&place.name(leaf)).expect(leaf);
    }
    assert_eq!(place.store.list(&place.prefix).expect("list"), []);
}

pub(super) fn bad_names_are_invalid(place: &CheckFolder) {
    let long = "x".repeat(2000);
    for name in ["", "/", "/a", "a/", "a//b", "../a", "a/./b", "a\0", "a\nb", "tmp/a", &long] {
        let store = place.store;
        assert_kind(store.put_if_absent(name, b"x"), Kind::Invalid);
        assert_kind(store.create(name), Kind::Invalid);
        assert_kind(store.size(name), Kind::Invalid);
        assert_kind(store.get(name, 1), Kind::Invalid);
        assert_kind(store.get_range(name, 0..1), Kind::Invalid);
        assert_kind(store.get_ranges(name, &[]), Kind::Invalid);
        assert_kind(store.append_log(name), Kind::Invalid);
        assert_kind(store.delete(name), Kind::Invalid);
    }
    for prefix in ["/", "a", "../", "a//"] {
        assert_kind(place.store.list(prefix), Kind::Invalid);
        assert_kind(place.store.list_names(prefix), Kind::Invalid);
    }
}

pub(super) fn list_is_sorted_and_whole(place: &CheckFolder) {
    for (leaf, bytes) in [("b", 1), ("a/c", 2), ("a-b", 3), ("a/b/d", 4), ("ab", 5), ("a.b", 6)] {
        place.put(leaf, &vec![0; bytes]);
    }
    let sizes = |prefix: &str| -> Vec<(String, u64)> {
        let listed = place.store.list(&place.name(prefix)).expect("list");
        assert!(listed.iter().all(|info| info.modified_ns > 0), "objects have a time");
        let leaf = |name: &str| name.strip_prefix(&place.prefix).expect("a prefix").to_owned();
        listed.iter().map(|info| (leaf(&info.name), info.bytes)).collect()
    };
    let expected = [("a-b", 3), ("a.b", 6), ("a/b/d", 4), ("a/c", 2), ("ab", 5), ("b", 1)];
    assert_eq!(sizes(""), expected.map(|(leaf, bytes)| (leaf.to_owned(), bytes)));
    let expected = [("a/b/d", 4), ("a/c", 2)];
    assert_eq!(sizes("a/"), expected.map(|(leaf, bytes)| (leaf.to_owned(), bytes)));
    assert_eq!(sizes("absent/"), []);
    assert_eq!(sizes("b/"), []);
    let everything = place.store.list("").expect("list");
    let ours = |name: &str| name.starts_with(&place.prefix);
    assert_eq!(everything.iter().filter(|info| ours(&info.name)).count(), 6);
}

pub(super) fn list_names_shows_one_level(place: &CheckFolder) {
    for leaf in ["b", "a/c", "a-b", "a/b/d", "c/d/e/f"] {
        place.put(leaf, b"x");
    }
    let names = |prefix: &str| place.store.list_names(&place.name(prefix)).expect("list");
    assert_eq!(names(""), ["a", "a-b", "b", "c"]);
    assert_eq!(names("a/"), ["b", "c"]);
    assert_eq!(names("c/"), ["d"]);
    assert_eq!(names("absent/"), [""; 0]);
    assert_eq!(names("b/"), [""; 0]);
    place.store.delete(&place.name("c/d/e/f")).expect("delete");
    assert_eq!(names(""), ["a", "a-b", "b"]);
}

/// More names than the 1000 of one page of an S3 listing.
pub(super) fn long_listings_are_whole(place: &CheckFolder) {
    let leaves: Vec<String> = (0..1100).map(|i| format!("{i:05}")).collect();
    std::thread::scope(|scope| {
        for share in leaves.chunks(leaves.len() / 8 + 1) {
            scope.spawn(move || share.iter().for_each(|leaf| place.put(leaf, b"")));
        }
    });
    assert_eq!(place.store.list(&place.prefix).expect("list").len(), leaves.len());
    assert_eq!(place.store.list_names(&place.prefix).expect("list"), leaves);
}

// SPDX-License-Identifier: Apache-2.0
//! Objects: put at once or in pieces, read whole, deleted.

use super::{CheckFolder, assert_kind, noise};
use crate::Kind;

/// More than two parts of an S3 upload, and not a multiple of anything.
const LARGE_BYTES: usize = (20 << 20) + 12_345;

pub(super) fn put_is_read_back(place: &CheckFolder) {
    let bytes = noise(1, 100_000);
    place.put("a", &bytes);
    assert_eq!(place.get("a"), bytes);
    assert_eq!(place.store.size(&place.name("a")).expect("size"), bytes.len() as u64);
}

pub(super) fn put_replaces_nothing(place: &CheckFolder) {
    place.put("a", b"first");
    assert_kind(place.store.put_if_absent(&place.name("a"), b"second"), Kind::Exists);
    // The same bytes are still another object.
    assert_kind(place.store.put_if_absent(&place.name("a"), b"first"), Kind::Exists);
    assert_eq!(place.get("a"), b"first");
}

pub(super) fn empty_objects_are_objects(place: &CheckFolder) {
    place.put("put", b"");
    place.store.create(&place.name("written")).expect("create").finish().expect("finish");
    for leaf in ["put", "written"] {
        assert_eq!(place.get(leaf), b"");
        assert_eq!(place.store.size(&place.name(leaf)).expect("size"), 0);
        assert_eq!(place.store.get_range(&place.name(leaf), 0..0).expect("nothing"), "");
    }
    assert_eq!(place.store.list_names(&place.prefix).expect("list"), ["put", "written"]);
}

pub(super) fn absent_is_not_found(place: &CheckFolder) {
    let name = place.name("absent");
    assert_kind(place.store.get(&name, 10), Kind::NotFound);
    assert_kind(place.store.get_range(&name, 0..1), Kind::NotFound);
    assert_kind(place.store.get_range(&name, 0..0), Kind::NotFound);
    assert_kind(place.store.get_ranges(&name, &[0..1, 5..6]), Kind::NotFound);
    assert_kind(place.store.size(&name), Kind::NotFound);
    // A name that is only a prefix of others is not an object.
    place.put("a/b", b"x");
    assert_kind(place.store.get(&place.name("a"), 10), Kind::NotFound);
    assert_kind(place.store.size(&place.name("a")), Kind::NotFound);
}

pub(super) fn get_keeps_to_its_limit(place: &CheckFolder) {
    place.put("a", b"0123456789");
    assert_eq!(place.store.get(&place.name("a"), 10).expect("at the limit"), "0123456789");
    assert_kind(place.store.get(&place.name("a"), 9), Kind::TooLarge);
}

pub(super) fn pieces_become_one_object(place: &CheckFolder) {
    let bytes = noise(2, 3 << 20);
    let name = place.name("a");
    let mut writer = place.store.create(&name).expect("create");
    let mut rest = &bytes[..];
    for piece in [0, 1, 10, 70_000, 1 << 20, (1 << 20) + 1, 5] {
        let (now, later) = rest.split_at(piece);
        writer.write(now).expect("write");
        assert_kind(place.store.size(&name), Kind::NotFound);
        rest = later;
    }
    writer.write(rest).expect("write");
    writer.finish().expect("finish");
    assert_eq!(place.get("a"), bytes);

    let mut second = place.store.create(&name).expect("create");
    second.write(b"other").expect("write");
    assert_kind(second.finish(), Kind::Exists);
    assert_eq!(place.get("a"), bytes);
}

pub(super) fn dropped_writers_leave_nothing(place: &CheckFolder) {
    for bytes in [10, 9 << 20] {
        let mut writer = place.store.create(&place.name("a")).expect("create");
        writer.write(&noise(3, bytes)).expect("write");
        drop(writer);
        assert_kind(place.store.get(&place.name("a"), 10), Kind::NotFound);
        assert_eq!(place.store.list(&place.prefix).expect("list"), []);
    }
    place.put("a", b"the name is still free");
}

pub(super) fn large_objects_are_whole(place: &CheckFolder) {
    let bytes = noise(4, LARGE_BYTES);
    place.put("put", &bytes);
    let mut writer = place.store.create(&place.name("written")).expect("create");
    for piece in bytes.chunks(777_777) {
        writer.write(piece).expect("write");
    }
    writer.finish().expect("finish");
    for leaf in ["put", "written"] {
        assert!(place.get(leaf) == bytes, "{leaf} differs");
        let range = (8 << 20) - 3..(16 << 20) + 3;
        let found = place.store.get_range(&place.name(leaf), range).expect("a range");
        assert!(found == bytes[(8 << 20) - 3..(16 << 20) + 3], "{leaf} differs");
    }
    let mut late = place.store.create(&place.name("written")).expect("create");
    late.write(&bytes).expect("write");
    assert_kind(late.finish(), Kind::Exists);
    assert!(place.get("written") == bytes, "a late writer replaced the object");
}

pub(super) fn delete_is_idempotent(place: &CheckFolder) {
    let name = place.name("a/b/c");
    place.put("a/b/c", b"x");
    assert_eq!(place.store.get_range(&name, 0..1).expect("read"), "x");
    for _ in 0..2 {
        place.store.delete(&name).expect("delete");
        assert_kind(place.store.get(&name, 10), Kind::NotFound);
        assert_kind(place.store.get_range(&name, 0..1), Kind::NotFound);
        assert_eq!(place.store.list_names(&place.prefix).expect("list"), [""; 0]);
    }
    place.put("a/b/c", b"again");
    assert_eq!(place.store.get_range(&name, 0..5).expect("read"), "again");
    // A name that is only a prefix of others is absent, and removing it removes none of them.
    place.store.delete(&place.name("a/b")).expect("delete");
    assert_eq!(place.get("a/b/c"), b"again");
}

pub(super) fn sweep_spares_what_is_finished(place: &CheckFolder) {
    place.put("a", b"x");
    let mut writer = place.store.create(&place.name("b")).expect("create");
    writer.write(b"y").expect("write");
    // Nothing is as old as the epoch.
    assert_eq!(place.store.sweep_unfinished(0, false).expect("sweep"), 0);
    writer.finish().expect("finish");
    assert_eq!(place.store.list_names(&place.prefix).expect("list"), ["a", "b"]);
}

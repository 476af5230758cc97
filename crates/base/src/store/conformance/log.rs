// SPDX-License-Identifier: Apache-2.0
//! Append logs: the guarantees about offsets, visibility and names.

use super::{CheckFolder, assert_kind, noise};
use crate::Kind;

pub(super) fn offsets_ascend(place: &CheckFolder) {
    let log = place.store.append_log(&place.name("log")).expect("log");
    assert_eq!(log.bytes(), 0);
    for (piece, offset) in [("abc", 0), ("", 3), ("de", 3), ("f", 5)] {
        assert_eq!(log.append(piece.as_bytes()).expect("append"), offset);
    }
    assert_eq!(log.bytes(), 6);
}

pub(super) fn synced_bytes_are_read_back(place: &CheckFolder) {
    let name = place.name("log");
    let log = place.store.append_log(&name).expect("log");
    assert_eq!(place.store.size(&name).expect("an empty log is there"), 0);
    assert_eq!(place.store.get(&name, 10).expect("an empty log is there"), "");
    log.append(b"0123").expect("append");
    log.sync().expect("sync");
    assert_eq!(place.get("log"), b"0123");
    assert_eq!(place.store.get_range(&name, 1..3).expect("range"), "12");
    log.append(b"4567").expect("append");
    log.append(b"89").expect("append");
    log.sync().expect("sync");
    log.sync().expect("a sync of nothing new");
    assert_eq!(place.get("log"), b"0123456789");
    assert_eq!(place.store.size(&name).expect("size"), 10);
    assert_eq!(place.store.get_range(&name, 2..9).expect("range"), "2345678");
    let ranges = place.store.get_ranges(&name, &[8..10, 0..1, 3..5, 4..4]).expect("ranges");
    assert_eq!(ranges, ["89", "0", "34", ""]);
    assert_kind(place.store.get_range(&name, 9..11), Kind::Corrupt);
    assert_kind(place.store.get(&name, 9), Kind::TooLarge);
    drop(log);
    assert_eq!(place.get("log"), b"0123456789");
}

pub(super) fn large_logs_are_whole(place: &CheckFolder) {
    let bytes = noise(20, (9 << 20) + 77);
    let name = place.name("log");
    let log = place.store.append_log(&name).expect("log");
    let mut offset = 0;
    for piece in bytes.chunks(1_000_003) {
        assert_eq!(log.append(piece).expect("append"), offset);
        offset += piece.len() as u64;
    }
    log.sync().expect("sync");
    assert!(place.get("log") == bytes, "the log differs");
    let (start, end) = ((4 << 20) - 9, (8 << 20) + 9);
    let found = place.store.get_range(&name, start as u64..end as u64).expect("range");
    assert!(found == bytes[start..end], "a range of the log differs");
}

pub(super) fn a_log_is_opened_once(place: &CheckFolder) {
    let name = place.name("log");
    let log = place.store.append_log(&name).expect("log");
    assert_kind(place.store.append_log(&name), Kind::Exists);
    log.append(b"x").expect("append");
    log.sync().expect("sync");
    drop(log);
    assert_kind(place.store.append_log(&name), Kind::Exists);
    place.put("object", b"x");
    assert_kind(place.store.append_log(&place.name("object")), Kind::Exists);
    assert_eq!(place.get("object"), b"x");
}

pub(super) fn a_log_in_place_is_its_file(place: &CheckFolder) {
    let name = place.name("log");
    let Some(files) = place.store.local_files() else { return };
    let (log, file) = files.create_log(&name).expect("log");
    assert_kind(files.create_log(&name), Kind::Exists);
    assert_kind(place.store.append_log(&name), Kind::Exists);
    for (offset, bytes) in [(4, "4567"), (0, "0123"), (2, "xy")] {
        file.write(offset, bytes.as_bytes()).expect("write");
        log.sync().expect("sync");
    }
    assert_eq!(place.get("log"), b"01xy4567");
    assert_eq!(place.store.get_range(&name, 1..5).expect("range"), "1xy4");
    file.set_bytes(3).expect("cut");
    assert_eq!(file.read(0, 9).expect("read"), b"01x");
    assert_eq!(place.store.size(&name).expect("size"), 3);
    place.store.delete(&name).expect("delete");
    assert_kind(place.store.size(&name), Kind::NotFound);
}

pub(super) fn a_log_is_listed_once(place: &CheckFolder) {
    for leaf in ["a/one", "a/two", "b"] {
        let log = place.store.append_log(&place.name(leaf)).expect("log");
        for piece in [b"abc", b"def"] {
            log.append(piece).expect("append");
            log.sync().expect("sync");
        }
    }
    place.put("a/object", b"x");
    let listed = place.store.list(&place.prefix).expect("list");
    let listed: Vec<(String, u64)> =
        listed.into_iter().map(|info| (info.name, info.bytes)).collect();
    let expected = [("a/object", 1), ("a/one", 6), ("a/two", 6), ("b", 6)];
    assert_eq!(listed, expected.map(|(leaf, bytes)| (place.name(leaf), bytes)));
    assert_eq!(place.store.list_names(&place.prefix).expect("list"), ["a", "b"]);
    let below = place.store.list_names(&place.name("a/")).expect("list");
    assert_eq!(below, ["object", "one", "two"]);
    assert_eq!(place.store.list(&place.name("b/")).expect("list"), []);
    assert_eq!(place.store.list_names(&place.name("b/")).expect("list"), [""; 0]);
}

pub(super) fn appends_do_not_interleave(place: &CheckFolder) {
    const PIECE_BYTES: usize = 3000;
    let log = place.store.append_log(&place.name("log")).expect("log");
    let append = |thread: u8| -> Vec<(u8, u64)> {
        let append = |round: u32| {
            let offset = log.append(&[thread; PIECE_BYTES]).expect("append");
            if round.is_multiple_of(8) {
                log.sync().expect("sync");
            }
            (thread, offset)
        };
        (0..40).map(append).collect()
    };
    let append = &append;
    let placed: Vec<(u8, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || append(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    log.sync().expect("sync");
    let found = place.get("log");
    assert_eq!(found.len(), placed.len() * PIECE_BYTES);
    for (thread, offset) in placed {
        let offset = usize::try_from(offset).expect("the log is in memory");
        assert!(found[offset..offset + PIECE_BYTES].iter().all(|byte| *byte == thread));
    }
}

pub(super) fn deleted_logs_are_gone(place: &CheckFolder) {
    let name = place.name("log");
    let log = place.store.append_log(&name).expect("log");
    for piece in [b"abc", b"def"] {
        log.append(piece).expect("append");
        log.sync().expect("sync");
    }
    drop(log);
    assert_eq!(place.store.get_range(&name, 1..5).expect("range"), "bcde");
    place.store.delete(&name).expect("delete");
    place.store.delete(&name).expect("delete again");
    assert_kind(place.store.size(&name), Kind::NotFound);
    assert_kind(place.store.get_range(&name, 1..5), Kind::NotFound);
    assert_eq!(place.store.list(&place.prefix).expect("list"), []);
    let log = place.store.append_log(&name).expect("the name is free again");
    log.append(b"new").expect("append");
    log.sync().expect("sync");
    assert_eq!(place.store.get_range(&name, 0..3).expect("range"), "new");
}

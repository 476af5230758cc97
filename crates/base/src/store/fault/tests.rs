// SPDX-License-Identifier: Apache-2.0
//! Tests of the fault store: each fault does what it promises, and images keep what was
//! acknowledged.

use super::*;
use crate::store::MemoryStore;

fn store(seed: u64) -> FaultStore {
    FaultStore::new(Arc::new(MemoryStore::new()), seed)
}

#[test]
fn counts_every_operation() {
    let store = store(1);
    store.put_if_absent("a", b"x").expect("put");
    let mut writer = store.create("b").expect("create");
    writer.write(b"y").expect("write");
    writer.finish().expect("finish");
    let log = store.append_log("c").expect("log");
    log.append(b"z").expect("append");
    log.sync().expect("sync");
    store.get("a", 1).expect("get");
    assert_eq!(store.operations(), 8);
}

#[test]
fn a_single_failure_goes_by() {
    let store = store(1);
    store.fail_at(2, Kind::NoSpace);
    store.put_if_absent("a", b"").expect("put");
    assert_eq!(store.put_if_absent("b", b"").expect_err("fault").kind(), Kind::NoSpace);
    store.put_if_absent("b", b"").expect("put");
}

#[test]
fn a_lost_answer_leaves_its_effect() {
    let store = store(1);
    store.fail_at_with(1, Kind::Unavailable, FaultEffect::Full);
    assert_eq!(store.put_if_absent("a", b"").expect_err("fault").kind(), Kind::Unavailable);
    assert_eq!(store.put_if_absent("a", b"").expect_err("there").kind(), Kind::Exists);
}

#[test]
fn the_world_stops() {
    for (effect, names) in [(FaultEffect::None, vec!["a"]), (FaultEffect::Full, vec!["a", "b"])] {
        let inner = Arc::new(MemoryStore::new());
        let store = FaultStore::new(inner.clone(), 1);
        store.stop_at(2, effect);
        store.put_if_absent("a", b"").expect("put");
        for name in ["b", "c"] {
            let error = store.put_if_absent(name, b"").expect_err("stopped");
            assert_eq!(error.kind(), Kind::Closed);
        }
        assert_eq!(store.get("a", 1).expect_err("stopped").kind(), Kind::Closed);
        assert!(store.is_stopped());
        assert_eq!(store.operations(), 2);
        assert_eq!(inner.list_names("").expect("list"), names);
        let image = store.after_power_loss().expect("image");
        assert_eq!(image.list_names("").expect("list"), names);
    }
}

#[test]
fn a_partial_append_keeps_a_prefix() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let store = store(seed);
        store.stop_at(2, FaultEffect::Partial);
        let log = store.append_log("log").expect("log");
        assert_eq!(log.append(b"0123456789").expect_err("stopped").kind(), Kind::Closed);
        let image = store.after_process_death().expect("image");
        let found = image.get("log", 100).expect("get");
        assert!(b"0123456789".starts_with(&found));
        lengths.insert(found.len());
    }
    assert!(lengths.len() > 5, "{lengths:?}");
}

#[test]
fn a_failed_sync_poisons() {
    let store = store(1);
    let log = store.append_log("log").expect("log");
    log.append(b"x").expect("append");
    store.fail_at(3, Kind::Unavailable);
    assert_eq!(log.sync().expect_err("fault").kind(), Kind::Unavailable);
    assert_eq!(log.sync().expect_err("poisoned").kind(), Kind::Closed);
    assert_eq!(log.append(b"y").expect_err("poisoned").kind(), Kind::Closed);
}

#[test]
fn power_loss_keeps_what_was_synced_and_tears_the_rest() {
    let store = store(7);
    let log = store.append_log("log").expect("log");
    let synced = vec![1_u8; 5000];
    log.append(&synced).expect("append");
    log.sync().expect("sync");
    log.append(&[2; 20_000]).expect("append");
    let whole = store.after_process_death().expect("image").get("log", u64::MAX).expect("get");
    assert_eq!(whole.len(), 25_000);
    let (mut torn, mut zeroed, mut garbled) = (0, 0, 0);
    for _ in 0..200 {
        let image = store.after_power_loss().expect("image");
        let found = image.get("log", u64::MAX).expect("get");
        assert_eq!(found[..5000], synced);
        torn += usize::from(found.len() < whole.len());
        zeroed += usize::from(found.contains(&0));
        garbled += usize::from(found.contains(&77));
    }
    assert!(torn > 100 && zeroed > 20 && garbled > 5, "{torn} {zeroed} {garbled}");
}

#[test]
fn a_log_never_synced_may_vanish() {
    let store = store(3);
    store.append_log("log").expect("log").append(b"x").expect("append");
    let found = (0..50).filter(|_| {
        let image = store.after_power_loss().expect("image");
        image.size("log").is_ok()
    });
    assert!((10..40).contains(&found.count()));
}

#[test]
fn unfinished_objects_are_gone() {
    let store = store(1);
    let mut writer = store.create("a").expect("create");
    writer.write(b"x").expect("write");
    for image in [store.after_power_loss(), store.after_process_death()] {
        assert_eq!(image.expect("image").list("").expect("list"), []);
    }
}

#[test]
fn an_object_with_a_lost_piece_never_appears() {
    let store = store(1);
    let mut writer = store.create("a").expect("create");
    store.fail_at(2, Kind::NoSpace);
    store.fail_at_with(3, Kind::Unavailable, FaultEffect::Full);
    writer.write(b"x").expect_err("fault");
    writer.finish().expect_err("fault");
    assert_eq!(store.get("a", 1).expect_err("absent").kind(), Kind::NotFound);
}

#[test]
fn a_seed_repeats_its_outcomes() {
    let run = |seed| {
        let store = store(seed);
        store.fail_one_in(3, Kind::Unavailable);
        let outcomes: Vec<bool> =
            (0..50).map(|i| store.put_if_absent(&format!("{i}"), b"").is_ok()).collect();
        outcomes
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    assert!((5..30).contains(&run(5).iter().filter(|ok| !**ok).count()));
}

#[test]
fn delays_delay() {
    let store = store(1);
    store.delay(Duration::from_millis(2));
    for i in 0..5 {
        store.put_if_absent(&format!("{i}"), b"").expect("put");
    }
}

#[test]
fn an_append_without_room_leaves_the_log_as_it_was() {
    let store = store(1);
    let log = store.append_log("log").expect("log");
    log.append(b"a").expect("append");
    store.fail_at(3, Kind::NoSpace);
    assert_eq!(log.append(b"lost").expect_err("full").kind(), Kind::NoSpace);
    assert_eq!((log.bytes(), log.append(b"b").expect("there is room again")), (1, 1));
    log.sync().expect("sync");
    store.fail_at_with(6, Kind::NoSpace, FaultEffect::Partial);
    assert_eq!(log.append(b"torn in the middle").expect_err("full").kind(), Kind::NoSpace);
    assert_eq!(log.append(b"c").expect_err("uncertain").kind(), Kind::Closed);
}

#[test]
fn a_full_store_takes_nothing_until_there_is_room() {
    let store = store(1);
    let log = store.append_log("log").expect("log");
    log.append(b"a").expect("append");
    let mut writer = store.create("object").expect("create");
    store.fill_at(4, FaultEffect::None);
    let is_full = |result: Result<()>| assert_eq!(result.expect_err("full").kind(), Kind::NoSpace);
    is_full(writer.write(b"x"));
    is_full(log.append(b"b").map(drop));
    is_full(store.put_if_absent("put", b""));
    is_full(store.create("other").map(drop));
    is_full(store.append_log("other").map(drop));
    log.sync().expect("what is there can be synced");
    assert_eq!(&store.get("log", 2).expect("read")[..], b"a");
    store.delete("absent").expect("delete");
    store.make_room();
    log.append(b"b").expect("append");
    store.put_if_absent("put", b"").expect("put");
    writer.finish().expect_err("a piece of it is missing");
    assert_eq!(store.operations(), 14);
}

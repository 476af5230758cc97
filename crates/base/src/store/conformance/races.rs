// SPDX-License-Identifier: Apache-2.0
//! Races: several threads at one name, and changes under a listing.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{CheckFolder, assert_kind};
use crate::{Kind, Result};

const THREADS: usize = 6;
const ROUNDS: usize = 15;

pub(super) fn exactly_one_put_wins(place: &CheckFolder) {
    one_wins(place, |name, bytes| place.store.put_if_absent(name, bytes));
}

/// Writers large enough that a store uploads them in parts race with each other and with puts.
pub(super) fn exactly_one_finish_wins(place: &CheckFolder) {
    one_wins(place, |name, bytes| {
        let mut writer = place.store.create(name).expect("create");
        writer.write(bytes).expect("write");
        writer.finish()
    });
    let large = vec![7; 9 << 20];
    for round in 0..3 {
        let name = place.name(&format!("large-{round}"));
        let start = Barrier::new(3);
        let finish = || {
            let mut writer = place.store.create(&name).expect("create");
            writer.write(&large).expect("write");
            start.wait();
            writer.finish()
        };
        let put = || {
            start.wait();
            place.store.put_if_absent(&name, b"small")
        };
        let outcomes = std::thread::scope(|scope| {
            let racing = [scope.spawn(finish), scope.spawn(finish), scope.spawn(put)];
            racing.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        let bytes = place.store.size(&name).expect("size");
        assert_eq!(bytes, if outcomes[2].is_ok() { 5 } else { large.len() as u64 });
        for outcome in outcomes.into_iter().filter(Result::is_err) {
            assert_kind(outcome, Kind::Exists);
        }
    }
}

pub(super) fn exactly_one_log_opens(place: &CheckFolder) {
    one_wins(place, |name, bytes| {
        let log = place.store.append_log(name)?;
        log.append(bytes)?;
        log.sync()
    });
}

fn one_wins(place: &CheckFolder, put: impl Fn(&str, &[u8]) -> Result<()> + Sync) {
    for round in 0..ROUNDS {
        let name = place.name(&format!("{round}"));
        let start = Barrier::new(THREADS);
        let race = |thread: usize| {
            start.wait();
            put(&name, format!("thread {thread}").as_bytes())
        };
        let race = &race;
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let racing: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || race(thread))).collect();
            racing.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let winners: Vec<usize> = (0..THREADS).filter(|thread| outcomes[*thread].is_ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {outcomes:?}");
        let found = place.store.get(&name, 100).expect("get");
        assert_eq!(found, format!("thread {}", winners[0]));
        for outcome in outcomes.into_iter().filter(Result::is_err) {
            assert_kind(outcome, Kind::Exists);
        }
    }
}

/// An object that stays is in every listing, even while others are added and removed beside it.
pub(super) fn listings_bear_changes(place: &CheckFolder) {
    let kept = ["a", "m/n", "z"];
    for leaf in kept {
        place.put(leaf, b"kept");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..50 {
                let leaf = format!("m/{round}/x");
                place.put(&leaf, b"passing");
                place.store.delete(&place.name(&leaf)).expect("delete");
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            let listed = place.store.list(&place.prefix).expect("list");
            for leaf in kept {
                let name = place.name(leaf);
                assert!(listed.iter().any(|info| info.name == name), "{leaf} is missing");
            }
            assert_eq!(
                place.store.list_names(&place.prefix).expect("list"),
                kept.map(|leaf| { leaf.split('/').next().expect("a first component") })
            );
        }
    });
}

/// A store may remove an empty directory, but never under a writer that puts into it.
pub(super) fn puts_bear_deletions_beside_them(place: &CheckFolder) {
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                for round in 0..40 {
                    let leaf = format!("a/b/{thread}");
                    place.put(&leaf, format!("{round}").as_bytes());
                    assert_eq!(place.get(&leaf), format!("{round}").as_bytes());
                    place.store.delete(&place.name(&leaf)).expect("delete");
                }
            });
        }
    });
    assert_eq!(place.store.list(&place.prefix).expect("list"), []);
}

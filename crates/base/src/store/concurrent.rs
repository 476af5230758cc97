// SPDX-License-Identifier: Apache-2.0
//! Concurrent requests: issues independent store requests side by side.
//!
//! A far store answers after a round trip, which concurrent requests share. A near store
//! ([`Store::requests_at_once`] of 1) gets them one after the other, in the given order and on the
//! caller's thread, so that it costs no threads and simulations can replay their runs.
//! Rounds: each thread counts the requests that had to follow one another in its work. A thread
//! started here begins with its caller's count, and the caller continues with the highest count of
//! the threads that it waited for. So a store can report how many round trips some work took,
//! independent of time.
//! Concurrency: callers wait for all threads that they start; panics propagate to them.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use super::Store;
use crate::{Error, Result};

thread_local! {
    /// Number of requests that followed one another, in this thread and in the work that led to it.
    static ROUNDS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a request of this thread and returns the number of its round trip. For stores that count.
pub fn count_round() -> u64 {
    ROUNDS.with(|rounds| {
        rounds.set(rounds.get() + 1);
        rounds.get()
    })
}

/// Runs `act` with a count of rounds that begins at `start`; returns its result and the count after
/// it.
fn counted_from<T>(start: u64, act: impl FnOnce() -> T) -> (T, u64) {
    ROUNDS.with(|rounds| {
        rounds.set(start);
        let done = act();
        (done, rounds.get())
    })
}

/// Runs `first` and `second`, concurrently on a far store. On a near store, runs `second` only if
/// `first` succeeds.
///
/// # Errors
/// That of `first`, else that of `second`; the system's error if it has no thread left.
pub fn try_join<A, B: Send>(
    store: &dyn Store,
    first: impl FnOnce() -> Result<A>,
    second: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    if store.requests_at_once() <= 1 {
        return Ok((first()?, second()?));
    }
    let start = ROUNDS.get();
    std::thread::scope(|scope| {
        let second = spawn(scope, move || counted_from(start, second))?;
        let first = first();
        let (second, rounds) = second.join().unwrap_or_else(|panic| resume_unwind(panic));
        ROUNDS.set(ROUNDS.get().max(rounds));
        Ok((first?, second?))
    })
}

/// Runs `work` on a thread of `scope`.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let spawned = Builder::new().name("request".into()).spawn_scoped(scope, work);
    spawned.map_err(|error| Error::io(error, "start a thread for a request"))
}

/// Applies `act` to each of `items` and returns the results in order; on a far store, to as many at
/// once as it accepts. On a near store, none is begun after one that failed.
///
/// # Errors
/// That of the first of `items` for which `act` fails; the system's error if it has no thread left.
pub fn try_map<T: Sync, R: Send>(
    store: &dyn Store,
    items: &[T],
    act: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let lanes = store.requests_at_once().min(items.len());
    if lanes <= 1 {
        return items.iter().map(act).collect();
    }
    let start = ROUNDS.get();
    // Fixed shares: requests take about the same time, and rounds do not depend on timing.
    let share = |lane: usize| {
        let run = || items.iter().skip(lane).step_by(lanes).map(&act).collect::<Vec<_>>();
        counted_from(start, run)
    };
    let mut lanes: Vec<_> = std::thread::scope(|scope| -> Result<_> {
        let others = (1..lanes).map(|lane| spawn(scope, move || share(lane)));
        let others = others.collect::<Result<Vec<_>>>()?;
        let own = share(0);
        let others = others.into_iter().map(|other| other.join());
        let others = others.map(|share| share.unwrap_or_else(|panic| resume_unwind(panic)));
        let all = std::iter::once(own).chain(others);
        Ok(all.map(|(done, rounds)| (done.into_iter(), rounds)).collect())
    })?;
    ROUNDS.set(lanes.iter().map(|(_, rounds)| *rounds).max().unwrap_or(start));
    let count = lanes.len();
    let in_order = (0..items.len()).map(|index| lanes[index % count].0.next());
    in_order.map(|done| done.expect("each item has an outcome")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Kind;
    use crate::store::{CountedStore, MemoryStore};

    fn far() -> CountedStore {
        let store = CountedStore::new(Arc::new(MemoryStore::new())).far(8);
        (0..20).for_each(|n| store.put_if_absent(&format!("{n}"), b"x").expect("put"));
        store
    }

    fn rounds(store: &CountedStore, act: impl FnOnce()) -> u64 {
        let before = store.counts();
        act();
        (store.counts() - before).rounds
    }

    #[test]
    fn requests_side_by_side_are_one_round() {
        let store = far();
        let get = |name: &str| store.get(name, 1).map(drop);
        let two = || {
            get("1")?;
            get("2")
        };
        assert_eq!(rounds(&store, || two().expect("there")), 2);
        let joined = || assert_eq!(try_join(&store, || get("1"), two).expect("there"), ((), ()));
        assert_eq!(rounds(&store, joined), 2);
        let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let get_all = |names: &[String]| {
            drop(try_map(&store, names, |name| get(name)).expect("there"));
        };
        assert_eq!(rounds(&store, || get_all(&names[..8])), 1);
        assert_eq!(rounds(&store, || get_all(&names)), 3, "eight at once");
        assert_eq!(rounds(&store, || get_all(&[])), 0);
        let nested = || {
            try_map(&store, &names[..2], |_| {
                get_all(&names[..8]);
                Ok(())
            })
        };
        assert_eq!(rounds(&store, || drop(nested().expect("there"))), 1);
    }

    #[test]
    fn outcomes_are_in_order_and_the_first_failure_counts() {
        for store in [far(), CountedStore::new(Arc::new(MemoryStore::new()))] {
            let items: Vec<usize> = (0..20).collect();
            let doubled = try_map(&store, &items, |item| Ok(item * 2)).expect("no failure");
            assert_eq!(doubled, (0..20).map(|item| item * 2).collect::<Vec<_>>());
            let fail = |what: &str| Error::new(Kind::Denied, what.to_owned());
            let late = |item: &usize| if *item > 4 { Err(fail(&item.to_string())) } else { Ok(()) };
            let error = try_map(&store, &items, late).expect_err("some fail");
            assert!(error.to_string().contains('5'), "{error}");
            let both = try_join(&store, || Err::<(), _>(fail("a")), || Err::<(), _>(fail("b")));
            assert!(both.expect_err("both fail").to_string().contains('a'));
        }
    }

    /// Simulations count requests, and stop the world at one of them.
    #[test]
    fn a_near_store_gets_one_request_after_the_other() {
        let store = MemoryStore::new();
        let begun = AtomicUsize::new(0);
        let fails = |item: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *item == 2 { Err(Error::new(Kind::Denied, "no")) } else { Ok(()) }
        };
        try_map(&store, &[0, 1, 2, 3], fails).expect_err("the third fails");
        assert_eq!(begun.into_inner(), 3);
    }
}

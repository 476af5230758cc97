// SPDX-License-Identifier: Apache-2.0
//! Costs that the documentation promises, in requests to the store.

use std::sync::Arc;

use esker::backend::{CountedStore, MemoryStore, RequestCounts};
use esker::{Repository, Result, Store};

fn counted() -> (Arc<CountedStore>, Repository) {
    let counted = Arc::new(CountedStore::new(Arc::new(MemoryStore::new())));
    let repository = Repository::open_in(Store::of_shared(counted.clone()));
    (counted, repository)
}

/// The requests of `act`.
fn during<T>(
    counted: &CountedStore,
    act: impl FnOnce() -> Result<T>,
) -> Result<(T, RequestCounts)> {
    let before = counted.counts();
    let done = act()?;
    Ok((done, counted.counts() - before))
}

#[test]
fn changes_of_a_private_session_make_no_request() -> Result<()> {
    let (counted, repository) = counted();
    let session = repository.session().begin()?;
    let dir = session.create_dir("/d")?;
    let ((), counts) = during(&counted, || {
        for number in 0..1000 {
            dir.create_empty(format!("{number}"))?;
            dir.write(format!("{number}"), "small content is in the record")?;
        }
        session.rename("/d", "/e")?;
        dir.remove_file("7")?;
        session.remove_dir_all("/e")
    })?;
    assert_eq!(counts, RequestCounts::default());
    Ok(())
}

#[test]
fn a_stack_is_opened_by_two_reads_for_each_change_set() -> Result<()> {
    let (counted, repository) = counted();
    let mut last = None;
    for number in 0..5 {
        let session = repository.session();
        let session = if let Some(last) = last { session.on(last) } else { session }.begin()?;
        for file in 0..100 {
            session.write(format!("/{number}-{file}"), "small")?;
        }
        last = Some(session.publish(&format!("{number}"))?);
    }
    let (snapshot, counts) = during(&counted, || repository.snapshot("4"))?;
    // The name and the root, two requests each; then a listing and a read for each of five.
    assert!(counts.reads + counts.lists <= 4 + 2 * 5, "{counts:?}");
    let (read, counts) = during(&counted, || snapshot.read("/0-7"))?;
    assert_eq!(read, b"small");
    assert!(counts.reads <= 5, "a table of each layer at most: {counts:?}");
    let (_, counts) = during(&counted, || snapshot.read("/0-7"))?;
    assert_eq!(counts, RequestCounts::default(), "it is cached");
    Ok(())
}

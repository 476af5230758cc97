// SPDX-License-Identifier: Apache-2.0
//! Conformance: one suite for all backends that keep the content of objects.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use esker_base::Kind;

use super::{Backend, BackendConnection};
use crate::object_content::ObjectContent;
use crate::pattern::{DatasetId, WorkingSetSize};

const DATASET: DatasetId = DatasetId { rank: 3, number: 1 };
/// As many ranks and datasets as the suite uses.
pub const SIZE: WorkingSetSize = WorkingSetSize {
    ranks: 4,
    datasets: 2,
    objects: 8,
    iterations: 8,
    object_bytes: 3_901,
    rank_offset: 1,
};

const MARKER: &[u8] = b"{\"test\":1}";

/// Ranks that race to create one object.
const RACERS: u32 = 4;

/// Runs all checks on `backend`, which must have no working set, and leaves none. Write-once
/// backends have checks of their own: [`write_once`].
///
/// # Panics
/// If the backend breaks the contract.
pub fn all(backend: &dyn Backend) {
    markers_are_replaced(backend);
    {
        let mut connection = backend.connect(DATASET.rank, &SIZE).expect("a connection");
        connection.add_rank(DATASET.rank).expect("a rank");
        connection.add_rank(DATASET.rank).expect("the same rank");
        connection.mkdir(DATASET).expect("a dataset");
        objects_come_and_go(&mut *connection);
        connection.rmdir(DATASET).expect("an empty dataset");
        connection.mkdir(DATASET).expect("the dataset again");
    }
    one_create_wins(backend);
    assert_eq!(backend.clear().expect("cleared"), 1, "the racers' object was left");
    assert_eq!(backend.read_marker().expect("no marker"), None);
    backend.finish(false).expect("finished");
}

/// Runs all checks on the write-once `backend`, which must have no working set, and leaves none.
///
/// # Panics
/// If the backend breaks the contract.
pub fn write_once(backend: &dyn Backend) {
    markers_are_replaced(backend);
    let barrier = Barrier::new(SIZE.ranks as usize);
    let objects = || {
        let datasets = (0..SIZE.ranks)
            .flat_map(|rank| (0..SIZE.datasets).map(move |number| DatasetId { rank, number }));
        datasets.flat_map(|dataset| (0..SIZE.objects).map(move |number| dataset.object(number)))
    };
    std::thread::scope(|scope| {
        for rank in 0..SIZE.ranks {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut connection = backend.connect(rank, &SIZE).expect("a connection");
                connection.add_rank(rank).expect("a rank");
                let mut content = ObjectContent::new(SIZE.object_bytes as usize);
                for object in objects().filter(|object| object.dataset.rank == rank) {
                    connection.create(object, content.of(object)).expect("created");
                }
                connection.flush().expect("flushed");
                connection.wait_for_ranks().expect("all ranks");
                barrier.wait();
                let mut found = vec![1; 10];
                for object in objects() {
                    assert_eq!(connection.stat(object).expect("its size"), SIZE.object_bytes);
                    connection.read(object, &mut found).expect("its content");
                    content.check(object, &found).expect("the content of this object");
                }
                let absent = DATASET.object(SIZE.objects + 1);
                assert_eq!(connection.stat(absent).expect_err("absent").kind(), Kind::NotFound);
                let absent = connection.read(absent, &mut found).expect_err("absent");
                assert_eq!(absent.kind(), Kind::NotFound);
                connection.wait_for_ranks().expect("all ranks");
                // No rank leaves while another waits.
                barrier.wait();
            });
        }
    });
    assert_eq!(backend.clear().expect("cleared"), objects().count() as u64);
    assert_eq!(backend.read_marker().expect("no marker"), None);
    backend.finish(false).expect("finished");
}

fn markers_are_replaced(backend: &dyn Backend) {
    assert_eq!(backend.clear().expect_err("nothing to clear").kind(), Kind::NotFound);
    assert_eq!(backend.read_marker().expect("no marker"), None);
    backend.write_marker(MARKER).expect("the first marker");
    backend.write_marker(b"{}").expect("another marker");
    assert_eq!(backend.read_marker().expect("a marker").as_deref(), Some(&b"{}"[..]));
}

fn objects_come_and_go(connection: &mut dyn BackendConnection) {
    for bytes in [0, 7, 3_901, 100_000] {
        let mut content = ObjectContent::new(bytes);
        let objects = [DATASET.object(0), DATASET.object(10), DATASET.object(2)];
        for object in objects {
            let absent = connection.stat(object).expect_err("not created yet");
            assert_eq!(absent.kind(), Kind::NotFound);
            connection.create(object, content.of(object)).expect("created");
            let again = connection.create(object, b"other").expect_err("a name that is taken");
            assert_eq!(again.kind(), Kind::Exists);
        }
        for with_attributes in [false, true] {
            assert_eq!(connection.list(DATASET, with_attributes).expect("a listing"), 3);
        }
        let mut found = vec![1; 10];
        for object in objects {
            assert_eq!(connection.stat(object).expect("its size"), bytes as u64);
            connection.read(object, &mut found).expect("its content");
            content.check(object, &found).expect("the content of this object");
        }
        connection.rename(objects[0], DATASET.object(99)).expect("renamed");
        connection.read(DATASET.object(99), &mut found).expect("under its new name");
        content.check(objects[0], &found).expect("the content it was created with");
        connection.rename(DATASET.object(99), objects[0]).expect("renamed back");
        for object in objects {
            connection.delete(object).expect("deleted");
            let gone = connection.read(object, &mut found).expect_err("deleted");
            assert_eq!(gone.kind(), Kind::NotFound);
        }
        assert_eq!(connection.list(DATASET, false).expect("a listing"), 0);
    }
}

fn one_create_wins(backend: &dyn Backend) {
    let winners = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..RACERS {
            scope.spawn(|| {
                let mut connection = backend.connect(DATASET.rank, &SIZE).expect("a connection");
                match connection.create(DATASET.object(5), b"first") {
                    Ok(()) => drop(winners.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => assert_eq!(error.kind(), Kind::Exists, "{error}"),
                }
            });
        }
    });
    assert_eq!(winners.into_inner(), 1, "exactly one create succeeds");
}

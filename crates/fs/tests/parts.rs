//! Parts of jobs that have names or snapshots of their own.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::identity::Identity;
use esker_fs::job::JobId;
use esker_fs::namespace::{Follow, Namespace};
use esker_fs::repository::Repository;
use esker_table::manifest::SetId;

use crate::gc::{options, write};

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

fn read(namespace: &Namespace, path: &str) -> Vec<u8> {
    let inode = namespace.stat(path, Follow::No).expect("stat");
    namespace.read(&inode, 0, 1_000).expect("read").to_vec()
}

/// Symptom: a snapshot of a part counted as one more part of its rank; publishing the job joined it,
/// and opening the parts of the job again would have opened the published snapshot.
/// Cause: it had all properties of the part, also those that say whose part it is.
/// Fix: it has all others.
#[test]
fn a_snapshot_of_a_part_is_no_part() {
    let repository = repository();
    let id = JobId::random();
    let part = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    let snapshot = part.snapshot("snapshot").expect("snapshot");
    let set = part.complete().expect("complete");
    let parts: Vec<SetId> =
        repository.parts(id).expect("parts").into_iter().map(|part| part.set).collect();
    assert_eq!(parts, [set]);
    let shown = repository.open(&[snapshot], Identity::root()).expect("open");
    assert_eq!(read(&shown, "/f"), [1; 900]);
}

/// Symptom: a part that had been published under a name of its own could not be opened by that name
/// any more after the parts of its job had been opened again.
/// Cause: opening a part looked for sets that build on it and not for names.
/// Fix: a part with a name stays as it is.
#[test]
fn a_part_with_a_name_is_not_opened_again() {
    let repository = repository();
    let id = JobId::random();
    let part = repository.begin_part(id, 0, &[], options()).expect("begin");
    write(&part, "/f", &[1; 900]).expect("write");
    let set = part.publish("part").expect("publish");
    let refused = repository.reopen_parts(id).expect_err("it has a name");
    assert_eq!(refused.kind(), Kind::Invalid);
    let shown = repository.open(&[set], Identity::root()).expect("open");
    assert_eq!(read(&shown, "/f"), [1; 900]);
    repository.delete("part").expect("delete");
    assert_eq!(repository.reopen_parts(id).expect("open again").len(), 1);
}

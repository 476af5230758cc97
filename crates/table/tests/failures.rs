//! Failures of the store while a tree writes: what was acknowledged is never quietly dropped.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{Effect, FaultStore, MemoryStore, SharedStore};
use esker_table::tree::{Durability, Tree};

use crate::records::{create, get, options, put, resume};

/// Symptom: after a failed flush, the next one returned success without the first one's records.
/// Cause: the memtable was frozen before its log was written and rotated; when that failed, no one
/// was handed the memtable, and an empty active one has nothing to flush.
/// Fix: a failure to hand a memtable over is the tree's failure, which later calls report.
#[test]
fn a_flush_that_failed_is_not_followed_by_one_that_succeeds_without_its_records() {
    for durability in [Durability::None, Durability::Async] {
        for background in [false, true] {
            fail_each_operation_of_a_flush(durability, background);
        }
    }
}

fn fail_each_operation_of_a_flush(durability: Durability, background: bool) {
    for fault in 1..20 {
        for effect in [Effect::None, Effect::Partial, Effect::Full] {
            let memory: SharedStore = Arc::new(MemoryStore::new());
            let fault_store = Arc::new(FaultStore::new(memory.clone(), fault));
            let store: SharedStore = fault_store.clone();
            let tree = create(&store, options(durability, background)).expect("create");
            put(&tree, b"key", b"value").expect("put");
            let next = fault_store.operations() + fault;
            fault_store.fail_at_with(next, Kind::NoSpace, effect);
            let outcomes = [tree.flush().is_ok(), tree.flush().is_ok()];
            let committed = tree.commit(|_| {}).is_ok();
            if outcomes.contains(&true) || committed {
                drop(tree);
                assert_is_in_tables(&memory, fault, effect);
            }
        }
    }
}

fn assert_is_in_tables(store: &SharedStore, fault: u64, effect: Effect) {
    for name in store.list("").expect("list") {
        if name.name.contains("/wal/") {
            store.delete(&name.name).expect("delete");
        }
    }
    let tree: Tree = resume(store, options(Durability::None, false)).expect("resume");
    let value = get(&tree, b"key").expect("get");
    assert_eq!(value.as_deref(), Some(&b"value"[..]), "operation {fault} failed, {effect:?}");
}

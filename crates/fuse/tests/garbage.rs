// SPDX-License-Identifier: Apache-2.0
//! Garbage of a mounted session.

use esker_fs::session::view::NamespaceView;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use esker_base::store::{MemoryStore, Store};

use crate::mounted::{Mounted, can_mount, options, repository};

/// Symptom: a file that was overwritten in a mount took more space in the store each time, until
/// the end of the mount.
/// Cause: only a compaction freed overwritten data, and only of closed files.
/// Fix: the mount frees garbage in the background.
#[test]
fn garbage_is_given_up_in_the_background() {
    const FILE_BYTES: usize = 8 << 20;
    const ROUNDS: usize = 20;
    if !can_mount() {
        return;
    }
    let store = Arc::new(MemoryStore::new());
    let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
    let mounted = Mounted::new(NamespaceView::Session(session.clone()));
    let file = File::create_new(mounted.path("file")).expect("create");
    for round in 0..ROUNDS {
        file.write_all_at(&vec![round as u8; FILE_BYTES], 0).expect("write");
    }
    let folder = format!("set/{}/data/", session.set());
    let stored = || -> u64 {
        let logs = store.list(&folder).expect("list");
        logs.iter().map(|log| log.bytes).sum()
    };
    let mut looks = 0;
    while stored() > 2 * FILE_BYTES as u64 + (65 << 20) {
        looks += 1;
        assert!(looks < 1_000, "{} bytes are stored", stored());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let mut bytes = vec![0; FILE_BYTES];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes.iter().all(|byte| usize::from(*byte) == ROUNDS - 1));
    drop(file);
    mounted.end().expect("closed");
}

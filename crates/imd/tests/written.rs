// SPDX-License-Identifier: Apache-2.0
//! Written: the logs of a small directory match docs/format/imd.md, byte by byte.

use std::sync::Arc;

use esker_base::store::{MemoryStore, SharedStore, Store};
use esker_comm::threads;
use esker_imd::{DirectoryOptions, DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat};

use crate::golden::assert_documented;

#[test]
fn the_example_is_what_is_written() {
    let memory = Arc::new(MemoryStore::new());
    let store: SharedStore = memory.clone();
    let mut options = DirectoryOptions::new(7, ValueFormat::Base, RecordLayout::Variable);
    options.memory_bytes = 1 << 20;
    threads::run(1, 1, |transport| {
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        imd.append(b"a", b"one")?;
        imd.append(b"bc", b"two")?;
        imd.epoch_flush()?;
        imd.finish()
    })
    .expect("written");
    let bytes = |name: &str| memory.get(name, 1 << 20).expect("an object");
    assert_documented("imd.md", "imd-data", &bytes("d/00000000-data"));
    assert_documented("imd.md", "imd-index", &bytes("d/00000000-index"));
    assert_documented("imd.md", "imd-root", &bytes("d/root"));
    let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
    assert_eq!(reader.get(b"bc").expect("get").values[0].bytes[..], b"two"[..]);
}

// SPDX-License-Identifier: Apache-2.0
//! Jobs with as many parts as large machines have ranks.

use std::sync::Arc;

use esker_base::clock::{Clock, SystemClock};
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::inode::{DirId, FileId, FileKind, INODE, Inode, NameKind, key};
use esker_fs::job::JobId;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};
use esker_table::run_writer::RunWriter;

use crate::gc::repository;

const JOB_ID: JobId = JobId(9);

/// Writes a complete part like a session that makes the directory `out` and a file in it; without a
/// table, like a session that has only data.
fn write_part(store: &SharedStore, rank: u32, has_table: bool) -> SetId {
    let set = SetId(u128::from(rank + 1) << 64 | 7);
    let mut manifest = Manifest::new(Vec::new(), 1);
    manifest.job = Some(JobMembership { job: JOB_ID.0, rank: Some(rank) });
    if has_table {
        let out = DirId::child(DirId::ROOT, 0, b"out");
        let directory =
            Inode { id: out.0, ..Inode::new(NameKind::Is(FileKind::Directory), 0o755, 1) };
        let id = FileId::new(set, 2).0;
        let file = Inode { id, ..Inode::new(NameKind::Is(FileKind::File), 0o644, 1) };
        let name = format!("rank{rank}").into_bytes();
        let mut records = [(key(DirId::ROOT, b"out"), &directory), (key(out, &name), &file)];
        records.sort_by(|a, b| a.0.cmp(&b.0));
        let mut next_table = 1 << 32;
        let mut writer = RunWriter::new(&INODE, store, set, 1, &mut next_table);
        for (key, inode) in records {
            let mut row = inode.row(&key);
            INODE.store(&mut row.ints);
            writer.push(&row).expect("push");
        }
        manifest.tables = writer.finish().expect("finish");
        manifest.last_seq = 2;
    }
    manifest.state = SetState::Sealed;
    marker::hold(&**store, set, &MarkerHolder::Session).expect("hold");
    manifest.claim(&**store, set, 1).expect("claim");
    set
}

/// Publishes a job of `parts` parts, of which one in `chances` has only data; returns the
/// microseconds that this took for each part.
fn publish(parts: u32, chances: u32) -> u64 {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let has_table = |rank: u32| !(rank + 1).is_multiple_of(chances);
    let sets: Vec<SetId> =
        (0..parts).map(|rank| write_part(&store, rank, has_table(rank))).collect();
    let began_ns = SystemClock.monotonic_ns();
    let report = repository.publish_job(&sets, "job").expect("publish");
    let took_ns = SystemClock.monotonic_ns() - began_ns;
    let took_us = took_ns / u64::from(parts) / 1_000;
    println!("{parts} parts: {took_us} us each");
    assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
    let manifest = Manifest::load(&*store, report.set).expect("manifest");
    assert_eq!(manifest.data_sets.len() as u32, parts / chances);
    let namespace = repository.open(&[report.set], Identity::root()).expect("open");
    for rank in [0, parts / 2, parts - 2] {
        namespace.stat(format!("/out/rank{rank}"), FollowLinks::No).expect("a file of the rank");
    }
    took_us
}

/// Symptom: the set of a job of 3,973 or more parts could not be read once it was published, if
/// half of them had only data.
/// Cause: its manifest listed those as a property of 33 bytes each, and readers accept 64 KiB.
/// Fix: they are a separate list in the manifest, and writers check every bound of readers.
#[test]
fn a_job_of_many_parts_is_published_and_read() {
    publish(8_192, 2);
}

#[test]
#[ignore = "long, and measures"]
fn a_job_of_131_072_parts_is_published_and_read() {
    let took_us = publish(131_072, 16);
    assert!(took_us <= 200, "{took_us} us a part");
}

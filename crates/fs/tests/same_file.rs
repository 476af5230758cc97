// SPDX-License-Identifier: Apache-2.0
//! Files of a base to which several parts of a job write.

use std::sync::Arc;

use esker_base::store::MemoryStore;
use esker_fs::job::{ConflictKind, JobId, JobReport};
use esker_fs::ops::AttributeChanges;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;

use crate::gc::options;
use crate::verify::assert_sound;

const SIZE: usize = 3 << 20;

/// Writes `count` bytes at `offset` of `/f`.
fn write_range(session: &Session, offset: usize, count: usize, byte: u8) {
    let file = session.open_file(session.root(), b"f").expect("open");
    session.file(&file).write(offset as u64, &vec![byte; count]).expect("write");
    session.close_file(file).expect("close");
}

/// Runs each of `ranks` on a base with a mapped file `/f` of zeros; returns the file's content and
/// mode in the job, its report, and the parts.
fn job(ranks: &[fn(&Session)]) -> (Vec<u8>, u32, JobReport, Vec<SetId>) {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options()).expect("begin");
    let file = session.create_file(session.root(), b"f", 0o644).expect("create");
    session.close_file(file).expect("close");
    write_range(&session, SIZE / 2, SIZE / 2, 0);
    write_range(&session, 0, SIZE / 2, 0);
    let base = session.publish("base").expect("publish");
    let mut parts = Vec::new();
    for (rank, run) in (0..).zip(ranks) {
        let session = repository.begin_part(JobId(1), rank, &[base], options()).expect("begin");
        run(&session);
        parts.push(session.complete().expect("complete"));
    }
    let report = repository.publish_job(&parts, "job").expect("publish");
    assert_sound(&repository);
    let shown = repository.open(&[report.set], Identity::root()).expect("open");
    let inode = shown.stat("/f", FollowLinks::No).expect("stat");
    let bytes = shown.read(&inode, 0, SIZE + 1).expect("read").to_vec();
    (bytes, inode.mode, report, parts)
}

fn first(session: &Session) {
    write_range(session, 100, 5_000, 1);
}

fn second(session: &Session) {
    write_range(session, 2 << 20, 5_000, 2);
}

fn protect(session: &Session) {
    let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    session.setattr(session.root(), b"f", &changes).expect("setattr");
}

/// Symptom: a file had ranges of two parts of a job, and overlapping ones of either, without a
/// reported conflict.
/// Cause: records of a mapped file to which two parts wrote differ only in times, which are
/// compatible, so the segments of both were shown.
/// Fix: parts with segments of one file conflict, and those of one are shown.
#[test]
fn ranges_of_one_file_that_two_parts_wrote_are_a_conflict() {
    let (bytes, _, report, parts) = job(&[first, second]);
    let mut expected = vec![0; SIZE];
    expected[100..5_100].fill(1);
    assert!(bytes == expected, "as one of them left it");
    assert_eq!(report.conflicts.len(), 1, "{:?}", report.conflicts);
    let conflict = &report.conflicts[0];
    assert_eq!(conflict.kind, ConflictKind::SameFile);
    assert_eq!(conflict.path.as_deref(), Some(&b"/f"[..]));
    assert_eq!((conflict.winner, &conflict.losers[..]), (parts[0], &parts[1..]));
}

#[test]
fn a_write_and_a_change_of_mode_fit_together() {
    let (bytes, mode, report, _) = job(&[protect, second]);
    let mut expected = vec![0; SIZE];
    expected[2 << 20..(2 << 20) + 5_000].fill(2);
    assert!(bytes == expected);
    assert_eq!((mode, report.conflicts.len()), (0o600, 0), "{:?}", report.conflicts);
    // One of the two writers' contents is shown, with the mode of the third part.
    let (bytes, mode, report, parts) = job(&[protect, first, second]);
    expected.fill(0);
    expected[100..5_100].fill(1);
    assert!(bytes == expected);
    assert_eq!((mode, report.conflicts.len()), (0o600, 1), "{:?}", report.conflicts);
    assert_eq!(report.conflicts[0].losers, parts[2..]);
}

// SPDX-License-Identifier: Apache-2.0
//! Jobs: parts written without coordination become one set, and conflicts are reported.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_fs::inode::DirId;
use esker_fs::job::{ConflictKind, JobId, JobReport};
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::{Manifest, SetId, SetState};

use crate::gc::{eager, later, objects, options, publish, repository, write};
use crate::verify::assert_sound;

fn memory() -> (SharedStore, Repository) {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    (store, repository)
}

/// Runs the ranks one after the other, publishes the job and checks that it is sound.
fn job(repository: &Repository, bases: &[SetId], ranks: &[fn(&Session)]) -> (Namespace, JobReport) {
    let mut parts = Vec::new();
    for (rank, run) in ranks.iter().enumerate() {
        let rank = u32::try_from(rank).expect("few ranks");
        let session = repository.begin_part(JobId(1), rank, bases, options()).expect("begin");
        run(&session);
        parts.push(session.complete().expect("complete"));
    }
    let report = repository.publish_job(&parts, "job").expect("publish");
    assert_sound(repository);
    repository.gc(&eager()).expect("gc");
    assert_sound(repository);
    (repository.open(&[report.set], Identity::root()).expect("open"), report)
}

fn base(repository: &Repository) -> SetId {
    let session = repository.begin(&[], options()).expect("begin");
    let root = session.root().clone();
    let d = session.mkdir(&root, b"d", 0o755).expect("mkdir");
    session.mkdir(&d, b"inner", 0o755).expect("mkdir");
    session.mkdir(&root, b"e", 0o755).expect("mkdir");
    write(&session, "/f", &[b'x'; 900]).expect("write");
    session.publish("base").expect("publish")
}

fn exists(namespace: &Namespace, path: &str) -> bool {
    match namespace.stat(path, FollowLinks::No) {
        Ok(_) => true,
        Err(error) if error.kind() == Kind::NotFound => false,
        Err(error) => panic!("{path}: {error:?}"),
    }
}

fn read(namespace: &Namespace, path: &str) -> Vec<u8> {
    let inode = namespace.stat(path, FollowLinks::No).expect("stat");
    let mut content = Vec::new();
    namespace
        .read_all(&inode, &mut |bytes| {
            content.extend_from_slice(bytes);
            Ok(())
        })
        .expect("read");
    content
}

#[test]
fn parts_that_share_directories_become_one_tree_without_conflicts() {
    let (store, repository) = memory();
    let base = base(&repository);
    let mut parts = Vec::new();
    for rank in 0..4 {
        let session = repository.begin_part(JobId(9), rank, &[base], options()).expect("begin");
        let root = session.root().clone();
        // Every rank makes the output directory independently.
        let out = session.mkdir(&root, b"out", 0o755).expect("mkdir");
        for number in 0..300 {
            let name = format!("rank{rank}.{number}");
            session.create(&out, name.as_bytes(), 0o644).expect("create");
            if number == 150 {
                session.flush().expect("flush");
            }
        }
        write(&session, &format!("/d/inner/data{rank}"), &[b'x'; 700]).expect("write");
        let own = session.mkdir(&root, format!("own{rank}").as_bytes(), 0o755).expect("mkdir");
        session.create(&own, b"f", 0o644).expect("create");
        parts.push(session.complete().expect("complete"));
    }
    let listed = repository.parts(JobId(9)).expect("parts");
    assert_eq!(listed.iter().map(|part| part.set).collect::<Vec<_>>(), parts);
    assert!(listed.iter().all(|part| part.is_complete));
    repository.gc(&eager()).expect("gc keeps complete parts");
    let report = repository.publish_job(&parts, "job").expect("publish");
    assert_eq!((report.parts, report.conflicts.len()), (4, 0), "{report:?}");
    let manifest = Manifest::load(&*store, report.set).expect("manifest");
    assert_eq!(manifest.bases, [base]);
    assert!(manifest.tables.iter().filter(|table| table.set == report.set).count() == 1);
    repository.delete("base").expect("delete");
    repository.gc(&eager()).expect("gc");
    assert_sound(&repository);
    let namespace = repository.open(&[report.set], Identity::root()).expect("open");
    for rank in 0..4 {
        assert!(exists(&namespace, &format!("/out/rank{rank}.299")));
        assert!(exists(&namespace, &format!("/own{rank}/f")));
        assert_eq!(read(&namespace, &format!("/d/inner/data{rank}")).len(), 700);
    }
    drop(namespace);
    repository.delete("job").expect("delete");
    later(&store).gc(&GcOptions::default()).expect("gc");
    let again = later(&store);
    again.gc(&eager()).expect("gc");
    assert!(objects(&store).iter().all(|name| name.contains("manifest")));
}

#[test]
fn the_lowest_sequence_number_wins_and_the_rest_is_reported() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                write(session, "/first", b"0").expect("write");
                write(session, "/d/same", b"rank 0").expect("write");
                write(session, "/tie", b"rank 0").expect("write");
            },
            |session| {
                write(session, "/d/same", b"rank 1").expect("write");
                write(session, "/x", b"1").expect("write");
                write(session, "/tie", b"rank 1").expect("write");
            },
        ],
    );
    assert_eq!(read(&namespace, "/d/same"), b"rank 1", "made first by its part");
    assert_eq!(read(&namespace, "/tie"), b"rank 0", "the lower rank of equals");
    assert!(exists(&namespace, "/first") && exists(&namespace, "/x"));
    let mut paths: Vec<_> = report
        .conflicts
        .iter()
        .map(|conflict| {
            assert_eq!(conflict.kind, ConflictKind::SameName);
            assert_eq!(conflict.losers.len(), 1);
            String::from_utf8(conflict.path.clone().expect("a path")).expect("utf-8")
        })
        .collect();
    paths.sort();
    assert_eq!(paths, ["/d/same", "/tie"]);
}

#[test]
fn times_are_merged_and_attributes_that_one_part_changed_are_kept() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                write(session, "/d/a", b"0").expect("write");
                write(session, "/d/b", b"0").expect("write");
            },
            |session| {
                for number in 0..9 {
                    write(session, &format!("/e/{number}"), b"1").expect("write");
                }
                let root = session.root().clone();
                let changes = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
                session.setattr(&root, b"d", &changes).expect("chmod");
                session.setattr(&root, b"f", &changes).expect("chmod");
            },
        ],
    );
    assert_eq!(report.conflicts, []);
    assert_eq!(namespace.stat("/d", FollowLinks::No).expect("stat").mode, 0o700);
    assert_eq!(namespace.stat("/f", FollowLinks::No).expect("stat").mode, 0o700);
    assert!(exists(&namespace, "/d/a"));
}

#[test]
fn a_move_holds_and_takes_along_what_others_wrote() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| write(session, "/d/new", b"0").expect("write"),
            |session| {
                write(session, "/one", b"1").expect("write");
                let root = session.root().clone();
                let to = (&root, &b"moved"[..]);
                session.rename((&root, b"d"), to, RenameFlags::Replace).expect("rename");
            },
        ],
    );
    assert!(exists(&namespace, "/moved/new") && !exists(&namespace, "/d"));
    assert_eq!(report.conflicts.len(), 1);
    assert_eq!(report.conflicts[0].kind, ConflictKind::Moved);
}

#[test]
fn a_directory_that_two_moved_is_at_one_place() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                write(session, "/one", b"1").expect("write");
                let root = session.root().clone();
                let to = (&root, &b"x"[..]);
                session.rename((&root, b"d"), to, RenameFlags::Replace).expect("rename");
            },
            |session| {
                let root = session.root().clone();
                let to = (&root, &b"y"[..]);
                session.rename((&root, b"d"), to, RenameFlags::Replace).expect("rename");
            },
        ],
    );
    let places = ["/x", "/y"].map(|path| exists(&namespace, path));
    assert_eq!(places.iter().filter(|is_there| **is_there).count(), 1, "{places:?}");
    assert!(report.conflicts.iter().any(|c| c.kind == ConflictKind::MovedTwice), "{report:?}");
}

#[test]
fn directories_moved_into_each_other_are_reported() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (_, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                let (root, e) =
                    (session.root().clone(), session.namespace().dir("/e").expect("dir"));
                session.rename((&root, b"d"), (&e, b"d"), RenameFlags::Replace).expect("rename");
            },
            |session| {
                let (root, d) =
                    (session.root().clone(), session.namespace().dir("/d").expect("dir"));
                session.rename((&root, b"e"), (&d, b"e"), RenameFlags::Replace).expect("rename");
            },
        ],
    );
    let lost = report.conflicts.iter().filter(|c| c.kind == ConflictKind::Unreachable).count();
    assert_eq!(lost, 2, "{report:?}");
}

#[test]
fn a_removal_and_a_change_are_a_conflict_and_two_removals_are_none() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                let root = session.root().clone();
                session.unlink(&root, b"f").expect("unlink");
                session.rmdir(&root, b"e").expect("rmdir");
            },
            |session| {
                let root = session.root().clone();
                session.rmdir(&root, b"e").expect("rmdir");
                let changes = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
                session.setattr(&root, b"f", &changes).expect("chmod");
            },
        ],
    );
    assert!(!exists(&namespace, "/e"));
    // A change wins over a removal.
    assert_eq!(namespace.stat("/f", FollowLinks::No).expect("stat").mode & 0o777, 0o700);
    assert_eq!(report.conflicts.len(), 1, "{report:?}");
    assert_eq!(report.conflicts[0].kind, ConflictKind::Removed);
}

#[test]
fn names_that_several_gave_one_file_are_counted_together() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                let root = session.root().clone();
                session.link(&root, b"f", &root, b"g").expect("link");
            },
            |session| {
                let root = session.root().clone();
                session.link(&root, b"f", &root, b"h").expect("link");
            },
        ],
    );
    assert_eq!(report.conflicts, []);
    assert_eq!(namespace.stat("/h", FollowLinks::No).expect("stat").nlink, 3);
    assert_eq!(read(&namespace, "/g").len(), 900);
}

#[test]
fn parts_that_are_open_double_or_built_on_each_other_are_refused() {
    let (_, repository) = memory();
    let session = repository.begin_part(JobId(1), 0, &[], options()).expect("begin");
    let open = session.set();
    let refused = |parts: &[SetId]| {
        let error = repository.publish_job(parts, "job").map(drop).expect_err("refused");
        assert_eq!(error.kind(), Kind::Invalid);
    };
    refused(&[open]);
    session.complete().expect("complete");
    refused(&[open, open]);
    refused(&[]);
    let upper = publish(&repository, &[open], "upper").expect("publish");
    refused(&[open, upper]);
    repository.publish_job(&[open], "job").expect("publish");
    assert_eq!(
        repository.publish_job(&[open], "job").map(drop).expect_err("name").kind(),
        Kind::Exists
    );
    assert_eq!(DirId::ROOT.0, 0);
}

#[test]
fn a_crash_anywhere_in_publishing_a_job_leaves_its_parts_or_the_job() {
    let build = || {
        let (store, repository) = memory();
        let base = base(&repository);
        let mut parts = Vec::new();
        for rank in 0..2 {
            let session = repository.begin_part(JobId(1), rank, &[base], options()).expect("begin");
            write(&session, &format!("/d/{rank}"), &[b'x'; 700]).expect("write");
            parts.push(session.complete().expect("complete"));
        }
        repository.delete("base").expect("delete");
        (store, parts)
    };
    let (store, parts) = build();
    let counter = Arc::new(FaultStore::new(store, 1));
    repository(&(counter.clone() as SharedStore)).publish_job(&parts, "job").expect("publish");
    for stop in 1..=counter.operations() {
        for effect in [FaultEffect::None, FaultEffect::Full] {
            let (store, parts) = build();
            let fault = Arc::new(FaultStore::new(store, stop));
            fault.stop_at(stop, effect);
            let stopped = repository(&(fault.clone() as SharedStore)).publish_job(&parts, "job");
            assert!(stopped.is_err());
            let image = fault.after_power_loss().expect("image");
            let plain = repository(&image);
            plain.gc(&eager()).expect("gc");
            assert_sound(&plain);
            let name = match plain.publish_job(&parts, "job") {
                Ok(_) => "job",
                Err(error) if error.kind() == Kind::Exists => "job",
                Err(error) => panic!("operation {stop}: {error:?}"),
            };
            let set = plain.resolve(name).expect("name").set;
            for set in plain.sets().expect("sets") {
                plain.abandon(set).expect("abandon");
            }
            plain.gc(&eager()).expect("gc");
            later(&image).gc(&eager()).expect("gc");
            assert_sound(&plain);
            assert_eq!(plain.sets().expect("sets").len(), 4, "operation {stop}");
            let namespace = plain.open(&[set], Identity::root()).expect("open");
            for rank in 0..2 {
                assert_eq!(read(&namespace, &format!("/d/{rank}")).len(), 700);
            }
        }
    }
}

/// Symptom: a job was published without the part of a rank whose manifest could not be read.
#[test]
fn a_part_that_cannot_be_read_is_named_and_can_be_given_up() {
    let (store, repository) = memory();
    let mut parts = Vec::new();
    for rank in 0..2 {
        let session = repository.begin_part(JobId(1), rank, &[], options()).expect("begin");
        write(&session, &format!("/{rank}"), &[b'x'; 700]).expect("write");
        parts.push(session.complete().expect("complete"));
    }
    let other = repository.begin(&[], options()).expect("begin");
    other.flush().expect("flush");
    write(&other, "/f", b"text").expect("write");
    other.flush().expect("flush");
    crate::gc::damage(&store, other.set());
    assert_eq!(repository.parts(JobId(1)).expect("parts").len(), 2, "no part of this job");
    crate::gc::damage(&store, parts[1]);
    let error = repository.parts(JobId(1)).expect_err("damaged");
    assert_eq!(error.kind(), Kind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("rank 1") && text.contains(&format!("drop @{}", parts[1])), "{text}");
    let refused = repository.publish_job(&parts, "job").map(drop).expect_err("damaged");
    assert_eq!(refused.kind(), Kind::Corrupt);
    repository.abandon(parts[1]).expect("abandon");
    let left: Vec<SetId> =
        repository.parts(JobId(1)).expect("parts").iter().map(|part| part.set).collect();
    assert_eq!(left, parts[..1]);
    repository.publish_job(&left, "job").expect("publish");
}

/// Returns a job of three ranks, the last of which died before it completed its part.
fn unfinished_job() -> (SharedStore, Repository, Vec<SetId>) {
    let (store, repository) = memory();
    let mut parts = Vec::new();
    for rank in 0..3 {
        let session = repository.begin_part(JobId(1), rank, &[], options()).expect("begin");
        write(&session, &format!("/{rank}"), &[b'x'; 700]).expect("write");
        session.sync().expect("sync");
        parts.push(session.set());
        if rank < 2 {
            session.complete().expect("complete");
        }
    }
    (store, repository, parts)
}

/// Resumes the job, publishes it, and checks that nothing is missing.
fn go_on_and_publish(repository: &Repository) {
    let parts = repository.reopen_parts(JobId(1)).expect("reopen");
    assert!(parts.len() == 3 && parts.iter().all(|part| !part.is_complete));
    let mut sets = Vec::new();
    for part in parts {
        let session = repository.resume(part.set, options()).expect("resume");
        write(&session, &format!("/again{}", part.rank), &[b'x'; 700]).expect("write");
        sets.push(session.complete().expect("complete"));
    }
    repository.publish_job(&sets, "job").expect("publish");
    repository.gc(&eager()).expect("gc");
    assert_sound(repository);
    let set = repository.resolve("job").expect("name").set;
    let namespace = repository.open(&[set], Identity::root()).expect("open");
    for rank in 0..3 {
        assert_eq!(read(&namespace, &format!("/{rank}")).len(), 700);
        assert_eq!(read(&namespace, &format!("/again{rank}")).len(), 700);
    }
    let error = repository.reopen_parts(JobId(1)).expect_err("joined");
    assert_eq!(error.kind(), Kind::Invalid);
}

/// Symptom: after a crash between the completion of the first part and that of the last, the job
/// could be neither resumed nor published.
/// Fix: complete parts are reopened.
#[test]
fn complete_parts_of_an_unfinished_job_are_opened_again() {
    let (_, repository, _) = unfinished_job();
    go_on_and_publish(&repository);
}

/// As above: a join that stops at any point leaves something to publish, or to give up, and its
/// leftovers cannot be mistaken for a session.
#[test]
fn a_job_goes_on_after_a_joining_that_stopped_anywhere() {
    for stop in 1.. {
        let (store, plain, parts) = unfinished_job();
        plain.resume(parts[2], options()).expect("resume").complete().expect("complete");
        let fault = Arc::new(FaultStore::new(store, stop));
        fault.stop_at(stop, FaultEffect::Full);
        let stopped = crate::gc::repository(&(fault.clone() as SharedStore));
        if stopped.publish_job(&parts, "job").is_ok() {
            break;
        }
        let image = fault.after_power_loss().expect("image");
        let plain = crate::gc::repository(&image);
        let left = plain.sets().expect("sets").into_iter().find(|set| !parts.contains(set));
        let state = left.and_then(|set| Some(Manifest::load(&*image, set).ok()?.state));
        match (left, state) {
            (Some(set), Some(SetState::Sealed)) => {
                let error = plain.reopen_parts(JobId(1)).expect_err("joined");
                assert!(error.to_string().contains(&set.to_string()), "{error}");
                plain.publish(set, "job").expect("publish what it became");
            }
            (Some(set), Some(_)) => {
                let error = plain.resume(set, options()).map(drop).expect_err("no session");
                assert_eq!(error.kind(), Kind::Invalid, "operation {stop}");
                go_on_and_publish(&plain);
            }
            _ => go_on_and_publish(&plain),
        }
    }
}

/// The published result is sound for any changes that ranks make to the same tree.
#[test]
fn random_parts_make_a_sound_tree() {
    for seed in 0..60 {
        let (_, repository) = memory();
        let mut random = esker_base::Random::from_seed(seed);
        let base = crate::squash::stack(&repository, &mut random, 2, 40);
        let mut parts = Vec::new();
        for rank in 0..3 {
            let session = repository.begin_part(JobId(1), rank, &[base], options()).expect("begin");
            for _ in 0..25 {
                let _ = crate::squash::change(&session, &mut random);
            }
            parts.push(session.complete().expect("complete"));
        }
        let report = repository.publish_job(&parts, "job").expect("publish");
        let checked = repository.verify(&esker_fs::maintenance::verify::VerifyOptions::default());
        let checked = checked.expect("verify");
        assert!(checked.is_sound(), "seed {seed}: {:#?} {report:#?}", checked.findings);
        let namespace = repository.open(&[report.set], Identity::root()).expect("open");
        crate::squash::tree(&namespace);
    }
}

/// Returns a base with the file `/big` of sevens, which is in the extent table.
fn big_base(repository: &Repository) -> SetId {
    let session = repository.begin(&[], options()).expect("begin");
    let file = session.create_file(session.root(), b"big", 0o644).expect("create");
    session.file(&file).write(0, &[7; 2 << 20]).expect("write");
    session.close_file(file).expect("close");
    session.publish("big").expect("publish")
}

fn move_big(session: &Session) {
    let root = session.root();
    session.rename((root, b"big"), (root, b"moved"), RenameFlags::Replace).expect("rename");
}

fn change_big(session: &Session, size: Option<u64>) {
    let changes = AttributeChanges { mode: Some(0o600), size, ..AttributeChanges::default() };
    session.setattr(session.root(), b"big", &changes).expect("change");
}

/// Symptom: after one part had changed a file of the base and another had renamed it, the job
/// showed it at both names; removing one of them made the other read as zeros, and truncating one
/// truncated both.
/// Cause: both names had one identity in one set.
/// Fix: one of them gets its own (`same_file.rs`).
#[test]
fn a_file_that_parts_left_at_two_names_is_two_files() {
    let ranks: [fn(&Session); 2] = [|session| change_big(session, None), move_big];
    let cut_ranks: [fn(&Session); 2] = [|session| change_big(session, Some(1_000)), move_big];
    for (ranks, size) in [(ranks, 2 << 20), (cut_ranks, 1_000)] {
        for is_reversed in [false, true] {
            let (_, repository) = memory();
            let base = big_base(&repository);
            let mut ranks = ranks;
            if is_reversed {
                ranks.reverse();
            }
            let (namespace, report) = job(&repository, &[base], &ranks);
            assert_eq!(read(&namespace, "/moved"), vec![7; 2 << 20]);
            if !exists(&namespace, "/big") {
                continue;
            }
            assert!(report.conflicts.iter().any(|conflict| {
                conflict.kind == ConflictKind::SeveralNames && conflict.path.is_some()
            }));
            assert_eq!(read(&namespace, "/big"), vec![7; size]);
            let session = repository.begin(&[report.set], options()).expect("begin");
            session.unlink(session.root(), b"big").expect("unlink");
            assert_eq!(read(session.namespace(), "/moved"), vec![7; 2 << 20]);
        }
    }
}

/// As [`a_file_that_parts_left_at_two_names_is_two_files`], where one part removed the file that it
/// had truncated.
#[test]
fn a_file_that_one_part_cut_and_removed_is_whole_where_another_moved_it() {
    let (_, repository) = memory();
    let base = big_base(&repository);
    let cut: fn(&Session) = |session| {
        change_big(session, Some(1_000));
        session.flush().expect("flush");
        session.unlink(session.root(), b"big").expect("unlink");
    };
    let (namespace, _) = job(&repository, &[base], &[cut, move_big]);
    assert_eq!(read(&namespace, "/moved"), vec![7; 2 << 20]);
}

/// A change that is not shown does not affect the content either.
#[test]
fn a_file_that_two_parts_cut_differently_is_as_one_of_them_left_it() {
    let (_, repository) = memory();
    let base = big_base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| change_big(session, Some(1_500_000)),
            |session| change_big(session, Some(1_000)),
        ],
    );
    assert_eq!(report.conflicts[0].kind, ConflictKind::SameFile);
    assert_eq!(read(&namespace, "/big"), vec![7; 1_500_000]);
}

/// Symptom: a file with two names, one of which one part removed and another moved, had one link
/// fewer than names afterwards; it lost its content with the next removal.
/// Cause: both parts had counted the name.
/// Fix: counts are corrected where parts changed the same name.
#[test]
fn a_name_that_one_part_removed_and_another_moved_is_counted_once() {
    let (_, repository) = memory();
    let session = repository.begin(&[], options()).expect("begin");
    write(&session, "/f", &[b'x'; 900]).expect("write");
    session.link(session.root(), b"f", session.root(), b"h").expect("link");
    let base = session.publish("base").expect("publish");
    let (namespace, _) = job(
        &repository,
        &[base],
        &[
            |session| drop(session.unlink(session.root(), b"f").expect("unlink")),
            |session| {
                let root = session.root();
                session.rename((root, b"f"), (root, b"g"), RenameFlags::Replace).expect("rename");
            },
        ],
    );
    assert!(!exists(&namespace, "/f"));
    assert_eq!(namespace.stat("/g", FollowLinks::No).expect("stat").nlink, 2);
    assert_eq!(read(&namespace, "/h").len(), 900);
}

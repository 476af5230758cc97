// SPDX-License-Identifier: Apache-2.0
//! A shared file as a file of the namespace, before it is shared and after it is published.

use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::stack::identity::Identity;
use esker_shared::INDEX_RANK;

use crate::support::{JOB, assert_sound, content, memory, options, repository, run, same, session};

fn bytes(rank: u32, turn: u64, length: usize) -> Vec<u8> {
    vec![u8::try_from((u64::from(rank) * 31 + turn * 7) % 251 + 1).expect("a byte"); length]
}

#[test]
fn ranks_that_take_turns_make_one_file() {
    let store = memory();
    let (ranks, turns, length) = (8_u32, 40_u64, 500_usize);
    let published = run(&store, (ranks, 4), &[], &options(2, 4_096), |mut job| {
        let mut file = job.open("/strided", Some(0o640))?;
        let me = job.segments().rank().0;
        for turn in 0..turns {
            let offset = (turn * u64::from(ranks) + u64::from(me)) * length as u64;
            job.write(&mut file, offset, &bytes(me, turn, length))?;
        }
        let attributes = job.close(file)?;
        assert_eq!(attributes.size, turns * u64::from(ranks) * length as u64);
        Ok(job.publish("strided")?.0)
    });
    let set = published.expect("job")[0];
    let repository = repository(&store);
    assert_sound(&repository);
    let mut wanted = Vec::new();
    for turn in 0..turns {
        (0..ranks).for_each(|rank| wanted.extend(bytes(rank, turn, length)));
    }
    same(&content(&repository, set, "/strided"), &wanted, "published");
    // Parts that hold only data, and parts of servers, are kept by the sets that refer to them.
    let (squashed, _) = repository.squash(&[set], &SquashOptions::default()).expect("squash");
    repository.publish(squashed, "squashed").expect("publish");
    repository.delete("strided").expect("delete");
    assert_sound(&repository);
    same(&content(&repository, squashed, "/strided"), &wanted, "squashed");
}

#[test]
fn a_file_of_a_base_is_written_over_without_a_copy() {
    for (name, length) in [("small", 100_usize), ("packed", 5_000), ("mapped", 70_000)] {
        let store = memory();
        let repository = repository(&store);
        let base = repository.begin(&[], session()).expect("begin");
        let root = base.root().clone();
        let file = base.create_file(&root, name.as_bytes(), 0o644).expect("create");
        let old: Vec<u8> = (0..length).map(|at| (at % 200) as u8).collect();
        base.file(&file).write(0, &old).expect("write");
        if name == "mapped" {
            // Cut and written again, so that some segments are beyond the visible content.
            base.file(&file).flush().expect("flush");
            base.file(&file).write(60_000, &[9; 2_000_000]).expect("write");
            let size = Some(length as u64);
            let cut = esker_fs::ops::AttributeChanges { size, ..Default::default() };
            base.file(&file).setattr(&cut).expect("cut");
        }
        base.close_file(file).expect("close");
        let base_set = base.publish(&format!("base-{name}")).expect("publish");
        let before = content(&repository, base_set, &format!("/{name}"));
        let published = run(&store, (3, 1), &[base_set], &options(1, 1_000), |mut job| {
            let path = format!("/{name}");
            let mut file = job.open(&path, None)?;
            same(&job.read(&mut file, 0, 1 << 20)?, &before, "as it was");
            job.barrier()?;
            let me = job.segments().rank().0;
            job.write(&mut file, 50 + 30 * u64::from(me), &[100 + me as u8; 30])?;
            if me == 2 {
                job.write(&mut file, length as u64 + 700, b"behind")?;
            }
            job.sync(&mut file)?;
            job.barrier()?;
            let mut now = job.read(&mut file, 0, 1 << 20)?.to_vec();
            job.barrier()?;
            let _ = job.truncate(&mut file, 120)?;
            now.truncate(120);
            now.resize(400, 0);
            let _ = job.truncate(&mut file, 400)?;
            same(&job.read(&mut file, 0, 1 << 20)?, &now, "cut and longer again");
            job.close(file)?;
            Ok((job.publish(&format!("over-{name}"))?.0, now))
        });
        let (set, now) = published.expect("job").swap_remove(0);
        assert!(now[50..80] == [100; 30] && now[80..110] == [101; 30]);
        same(&content(&repository, set, &format!("/{name}")), &now, name);
        same(&content(&repository, base_set, &format!("/{name}")), &before, "the base");
        assert_sound(&repository);
    }
}

#[test]
fn what_a_rank_wrote_alone_may_be_shared_afterwards() {
    let store = memory();
    let published = run(&store, (4, 2), &[], &options(2, 1_000), |mut job| {
        if job.segments().rank().0 == 0 {
            let root = job.session().root().clone();
            let file = job.session().create_file(&root, b"log", 0o644)?;
            job.session().file(&file).write(0, &[1; 9_000])?;
            job.session().file(&file).flush()?;
            // The file is mapped now, with a hole and a cut.
            job.session().file(&file).write(3_000_000, &[2; 10])?;
            let cut = esker_fs::ops::AttributeChanges { size: Some(8_000), ..Default::default() };
            job.session().file(&file).setattr(&cut)?;
            job.session().close_file(file)?;
        }
        let mut file = job.open("/log", None)?;
        let me = job.segments().rank().0;
        job.write(&mut file, 2_000 * u64::from(me), &[10 + me as u8; 500])?;
        job.laminate(&mut file)?;
        assert!(job.write(&mut file, 0, b"late").is_err());
        let all = job.read(&mut file, 0, 1 << 20)?;
        for rank in 0..4 {
            let start = 2_000 * rank;
            assert!(all[start..start + 500].iter().all(|byte| *byte == 10 + rank as u8));
            assert!(all[start + 500..start + 2_000].iter().all(|byte| *byte == 1));
        }
        job.barrier()?;
        assert_eq!(job.close(file)?.size, 8_000);
        Ok((job.publish("log")?.0, all.to_vec()))
    });
    let (set, all) = published.expect("job").swap_remove(0);
    let repository = repository(&store);
    same(&content(&repository, set, "/log"), &all, "published");
    assert_sound(&repository);
    let parts = repository.parts(JOB).expect("parts");
    assert_eq!(parts.iter().filter(|part| part.rank >= INDEX_RANK).count(), 4);
}

#[test]
fn all_ranks_are_told_why_a_file_does_not_open() {
    let store = memory();
    let done = run(&store, (3, 3), &[], &options(1, 100), |mut job| {
        let missing = job.open("/none", None).expect_err("there is none");
        assert_eq!(missing.kind(), esker_base::Kind::NotFound);
        let file = job.open("/some", Some(0o600))?;
        job.close(file).map(|attributes| attributes.size)
    });
    assert_eq!(done.expect("job"), [0, 0, 0]);
}

/// As `open` with `O_CREAT` does; a later open that is denied leaves nothing open.
#[test]
fn who_makes_a_file_writes_it_whatever_its_mode_says() {
    let store = memory();
    let everyone = repository(&store).begin(&[], session()).expect("begin");
    everyone.mkdir(everyone.root(), b"tmp", 0o777).expect("mkdir");
    let base = everyone.publish("base").expect("publish");
    let mut options = options(1, 100);
    options.session.identity = Identity { uid: 1_000, gid: 1_000, groups: vec![] };
    let published = run(&store, (3, 3), &[base], &options, |mut job| {
        let mut file = job.open("/tmp/once", Some(0o400))?;
        let me = job.segments().rank().0;
        job.write(&mut file, 40 * u64::from(me), &bytes(me, 0, 40))?;
        job.close(file)?;
        let denied = job.open("/tmp/once", None).expect_err("it may be read only");
        assert_eq!(denied.kind(), esker_base::Kind::Denied);
        Ok(job.publish("once")?.0)
    });
    let set = published.expect("job")[0];
    let wanted: Vec<u8> = (0..3).flat_map(|rank| bytes(rank, 0, 40)).collect();
    same(&content(&repository(&store), set, "/tmp/once"), &wanted, "published");
}

/// Symptom: when one rank could not complete its part, the others got the error that it is lost, or
/// waited for it until the deadline.
/// Cause: ranks waited at a barrier that a failed rank did not reach.
/// Fix: they agree on the outcome.
#[test]
fn all_ranks_are_told_why_a_job_is_not_published() {
    let store = memory();
    let done = run(&store, (3, 3), &[], &options(1, 100), |mut job| {
        let rank = job.segments().rank().0;
        if rank == 1 {
            // Another session takes over its part.
            repository(&store).resume(job.session().set(), session())?;
        }
        job.barrier()?;
        Ok(job.publish("none").expect_err("a part is somebody else's").kind())
    });
    assert_eq!(done.expect("job"), [esker_base::Kind::Fenced; 3]);
    assert!(repository(&store).resolve("none").is_err());
}

#[test]
fn a_file_is_open_once_and_removed_with_its_bytes() {
    let store = memory();
    let published = run(&store, (3, 3), &[], &options(2, 1_000), |mut job| {
        let me = job.segments().rank().0;
        let mut file = job.open("/f", Some(0o644))?;
        let again = job.open("/f", Some(0o644)).expect_err("it is open");
        assert_eq!(again.kind(), esker_base::Kind::Invalid);
        job.exchange(&mut file)?;
        job.write(&mut file, u64::from(me) * 2_000, &bytes(me, 1, 2_000))?;
        job.close(file)?;
        job.unlink("/f")?;
        let gone = job.open("/f", None).expect_err("it was removed");
        assert_eq!(gone.kind(), esker_base::Kind::NotFound);
        // A new file has nothing of the old one, which has another identity.
        let mut file = job.open("/f", Some(0o644))?;
        assert_eq!(job.read(&mut file, 0, 10_000)?.len(), 0);
        job.barrier()?;
        if me == 0 {
            job.write(&mut file, 10, b"new")?;
        }
        assert_eq!(job.close(file)?.size, 13);
        Ok(job.publish("f")?.0)
    });
    let set = published.expect("job")[0];
    let repository = repository(&store);
    assert_sound(&repository);
    same(&content(&repository, set, "/f"), b"\0\0\0\0\0\0\0\0\0\0new", "published");
}

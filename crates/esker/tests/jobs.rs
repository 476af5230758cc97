// SPDX-License-Identifier: Apache-2.0
//! Jobs: parts that are missing, not complete, or left by a crash.

use esker::{Durability, JobId, Kind, Result, threads};

use crate::repository;

#[test]
fn a_job_is_published_once_all_parts_are_complete() -> Result<()> {
    let repository = repository();
    let job = repository.job(JobId::random());
    assert_eq!(job.publish("none").expect_err("no parts").kind(), Kind::NotFound);
    let parts = [job.part(0).begin()?, job.part(1).begin()?];
    for (rank, part) in parts.iter().enumerate() {
        part.write(format!("/{rank}"), "done")?;
    }
    parts[0].complete()?;
    let refused = job.publish("early").expect_err("rank 1 writes");
    assert_eq!(refused.kind(), Kind::Invalid);
    // A part that is dropped stays, and is resumed.
    let left = parts[1].id();
    parts[1].sync()?;
    drop(parts);
    let again = job.parts()?.into_iter().find(|part| !part.is_complete).expect("rank 1's");
    assert_eq!((again.rank, again.set), (1, left));
    repository.session().resume(left)?.complete()?;
    assert_eq!(job.publish("all")?.parts, 2);
    assert_eq!(repository.snapshot("all")?.entries("/")?.count(), 2);
    Ok(())
}

#[test]
fn an_abandoned_job_has_no_parts() -> Result<()> {
    let repository = repository();
    let job = repository.job(JobId::random());
    for rank in 0..3 {
        job.part(rank).resumable(Durability::None).begin()?.complete()?;
    }
    assert_eq!(job.parts()?.len(), 3);
    job.abandon()?;
    assert_eq!(job.parts()?.len(), 0);
    Ok(())
}

#[test]
fn a_shared_file_and_a_rank_own_names_are_published_together() -> Result<()> {
    let repository = repository();
    let session = repository.session().begin()?;
    session.write("/base", "below")?;
    let base = session.publish("base")?;
    let job = repository.job(JobId::random());
    let sets = threads::run(3, 2, |transport| {
        let job = job.share_files().on(base).servers_per_node(1).begin(transport)?;
        let rank = u64::from(job.rank().0);
        job.root().write(format!("own-{rank}"), "own")?;
        let mut file = job.create("/shared")?;
        file.write_at(&[rank as u8; 10], rank * 10)?;
        file.laminate()?;
        assert_eq!(file.write_at(b"late", 0).expect_err("sealed").kind(), Kind::Denied);
        assert_eq!(file.read_at(25, 100)?, &[2; 5][..]);
        assert_eq!(file.close()?.size, 30);
        let absent = job.open("/absent").expect_err("at all ranks");
        assert_eq!(absent.kind(), Kind::NotFound);
        job.publish("out").map(|(set, _)| set)
    })?;
    assert!(sets.iter().all(|set| *set == sets[0]));
    let out = repository.snapshot(sets[0])?;
    assert_eq!(out.entries("/")?.count(), 5);
    assert_eq!(out.read("/shared")?, [[0; 10], [1; 10], [2; 10]].concat());
    Ok(())
}

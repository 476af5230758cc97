// SPDX-License-Identifier: Apache-2.0
//! A job of ranks, each with a part of its own: they share an id, and do not talk to each other.

use std::thread;

use esker::{Job, JobId, Repository};

const RANKS: u32 = 4;
const FILES: u32 = 1000;

/// One rank: here a thread, in a real job a process on any machine.
fn rank(job: &Job, rank: u32) -> esker::Result<()> {
    let part = job.part(rank).on("input").begin()?;
    let factor = part.read("/factor")?.len() as u64;
    let dir = part.create_dir_all(format!("/output/rank-{rank}"))?;
    for number in 0..FILES {
        dir.write(format!("{number}"), format!("{}", factor * u64::from(number)))?;
    }
    // All ranks write this name; the publication decides, and reports it.
    part.write("/summary", format!("written by rank {rank}"))?;
    part.complete().map(drop)
}

pub(crate) fn main() -> esker::Result<()> {
    let repository = Repository::create("memory:job_of_ranks")?;
    let session = repository.session().begin()?;
    session.write("/factor", "12345")?;
    session.publish("input")?;

    // A scheduler would give all ranks the id.
    let job = repository.job(JobId::random());
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|number| {
                let job = &job;
                scope.spawn(move || rank(job, number))
            })
            .collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank does not panic"))
    })?;

    // Joining moves references to tables, and no data.
    let report = job.publish("output")?;
    println!("{} parts, {} tables, {} merged names", report.parts, report.tables, report.merged);
    for conflict in &report.conflicts {
        let path = conflict.path.as_deref().unwrap_or_default();
        let losers = conflict.losers.len();
        println!("{}: the changes of {losers} parts lost", String::from_utf8_lossy(path));
    }
    assert_eq!(report.conflicts.len(), 1);

    let output = repository.snapshot("output")?;
    let summary = output.read("/summary")?;
    println!("summary: {}", String::from_utf8_lossy(&summary));
    assert_eq!(output.read(format!("/output/rank-3/{}", FILES - 1))?, b"4995");
    assert_eq!(output.entries("/output/rank-0")?.count(), FILES as usize);
    Ok(())
}

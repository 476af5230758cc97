// SPDX-License-Identifier: Apache-2.0
//! One directory that the ranks of a job fill together, each as a process of its own, and that then
//! appears in a live namespace at once, whatever its size:
//!
//! ```sh
//! job=$(esker session job)
//! esker run -n 4 directory_of_ranks $job 1000000
//! esker publish --job $job step-7
//! esker live insert step-7:/particles run:/step-7
//! ```

use std::env;

use esker::{Job, JobId, Repository};

/// One rank: writes every `ranks`-th of `files` particles. It talks to nobody.
fn write_particles(job: &Job, (rank, ranks): (u32, u32), files: u32) -> esker::Result<()> {
    // Insertable: its directories have identities that exist nowhere else.
    let part = job.part(rank).insertable().begin()?;
    let dir = part.create_dir_all("/particles")?;
    for number in (rank..files).step_by(ranks as usize) {
        dir.write(format!("particle.{number:07}"), format!("energy of {number}\n"))?;
    }
    part.complete().map(drop)
}

/// The number in the environment variable `name`, which `esker run` sets for each rank.
fn variable(name: &str) -> Option<u32> {
    env::var(name).ok()?.parse().ok()
}

pub(crate) fn main() -> esker::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    if let (Some(rank), Some(ranks), [_, job, files]) =
        (variable("ESKER_RANK"), variable("ESKER_RANKS"), &arguments[..])
    {
        let store = env::var("ESKER_STORE").expect("ESKER_STORE is set");
        let repository = Repository::open(&store)?;
        let job = repository.job(job.parse::<JobId>().expect("an id of `esker session job`"));
        return write_particles(&job, (rank, ranks), files.parse().expect("a number of files"));
    }

    // Without `esker run` all ranks are in this process.
    let repository = Repository::create("memory:directory_of_ranks")?;
    let job = repository.job(JobId::random());
    (0..4).try_for_each(|rank| write_particles(&job, (rank, 4), 1000))?;
    let report = job.publish("step-7")?;
    assert_eq!((report.parts, report.conflicts.len()), (4, 0));
    let particles = repository.snapshot("step-7")?;
    assert_eq!(particles.entries("/particles")?.count(), 1000);
    assert_eq!(particles.read("/particles/particle.0000999")?, b"energy of 999\n");
    println!("4 ranks wrote 1,000 files of one directory");
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0
//! Ranks that die: the others learn which, nothing hangs, and synced data is there.

use std::time::Duration;

use esker_base::store::MemoryStore;
use esker_base::{Error, Kind, Result};
use esker_comm::job::RankContext;
use esker_comm::{Rank, tcp};
use esker_shared::SharedJob;

use crate::support::{JOB, assert_sound, content, memory, options, repository, run, same};

#[test]
fn a_dead_rank_is_named_and_what_it_synced_stays() {
    for dead in 0..4_u32 {
        let store = memory();
        let died = run(&store, (4, 2), &[], &options(1, 100), |mut job| {
            let mut file = job.open("/f", Some(0o644))?;
            let me = job.segments().rank().0;
            job.write(&mut file, u64::from(me) * 1_000, &[1 + me as u8; 1_000])?;
            job.sync(&mut file)?;
            job.barrier()?;
            if me == dead {
                // Never sent, so never seen.
                job.write(&mut file, 0, &[99; 4_000])?;
                return Err(Error::new(Kind::Invalid, "dies here"));
            }
            loop {
                let failure = match job.read(&mut file, 0, 4_000) {
                    Ok(bytes) => {
                        assert_eq!(bytes.len(), 4_000);
                        job.barrier().err()
                    }
                    Err(error) => Some(error),
                };
                if let Some(error) = failure {
                    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
                    assert!(error.to_string().contains(&format!("rank {dead}")), "{error}");
                    return Err::<(), _>(error);
                }
            }
        });
        let error = died.expect_err("a rank died");
        assert!(error.to_string().contains("dies here"), "{error}");
        // With fewer ranks and other servers.
        let published = run(&store, (3, 3), &[], &options(2, 70), |mut job| {
            let mut file = job.open("/f", None)?;
            let bytes = job.read(&mut file, 0, 1 << 20)?;
            for rank in 0..4_usize {
                let own = &bytes[rank * 1_000..(rank + 1) * 1_000];
                assert!(own.iter().all(|byte| *byte == 1 + rank as u8), "rank {rank}");
            }
            job.barrier()?;
            assert_eq!(job.close(file)?.size, 4_000);
            Ok((job.publish("after")?.0, bytes.to_vec()))
        });
        let (set, bytes) = published.expect("again").swap_remove(0);
        let repository = repository(&store);
        same(&content(&repository, set, "/f"), &bytes, "published");
        assert_sound(&repository);
    }
}

/// Symptom: after a crash between the completion of the first part and that of the last, the job
/// could neither begin again nor be published.
/// Cause: a complete part takes no changes, so `begin` refused the job.
/// Fix: it reopens such parts, as long as they are not joined.
#[test]
fn a_job_that_ends_while_it_is_published_goes_on() {
    let store = memory();
    let repository = repository(&store);
    let has_complete_part = || {
        let parts = repository.parts(JOB).expect("parts");
        parts.iter().any(|part| part.is_complete)
    };
    let ended = run(&store, (2, 2), &[], &options(1, 100), |mut job| {
        let me = job.segments().rank().0;
        let mut file = job.open("/f", Some(0o644))?;
        job.write(&mut file, u64::from(me) * 1_000, &[1 + me as u8; 1_000])?;
        job.sync(&mut file)?;
        job.close(file)?;
        // The steps of `publish` up to the completion of the first part.
        job.segments().sync()?;
        job.barrier()?;
        if me == 0 {
            job.session().complete()?;
        }
        Err::<(), _>(Error::new(Kind::Invalid, "dies here"))
    });
    assert!(ended.expect_err("a rank died").to_string().contains("dies here"));
    assert!(has_complete_part());
    let published = run(&store, (2, 2), &[], &options(1, 100), |mut job| {
        let mut file = job.open("/f", None)?;
        let bytes = job.read(&mut file, 0, 4_000)?.to_vec();
        job.barrier()?;
        job.close(file)?;
        Ok((job.publish("out")?.0, bytes))
    });
    let (set, bytes) = published.expect("again").swap_remove(0);
    assert!(bytes[..1_000].iter().all(|byte| *byte == 1));
    assert!(bytes.len() == 2_000 && bytes[1_000..].iter().all(|byte| *byte == 2));
    same(&content(&repository, set, "/f"), &bytes, "published");
    assert_sound(&repository);
    let again = run(&store, (2, 2), &[], &options(1, 100), |_| Ok(()));
    let error = again.expect_err("it is published");
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("joined"), "{error}");
}

/// Like processes of which one is killed: its sockets end without a goodbye.
#[test]
fn a_rank_whose_connections_end_is_named_and_what_it_synced_is_read_from_the_store() {
    const DEAD: u32 = 1;
    let (store, meet) = (memory(), MemoryStore::default());
    let repository = repository(&store);
    let tcp_options = tcp::TcpOptions { deadline: Duration::from_secs(60), ..Default::default() };
    let live = |rank: Rank| -> Result<()> {
        let node = (rank.0 / 2).to_string();
        let place =
            RankContext { id: "lost".into(), rank, size: 4, node, address: None, meet: None };
        tcp::run(&meet, &place, &tcp_options, |transport| {
            let mut job = SharedJob::begin(transport, &repository, JOB, &[], &options(1, 100))?;
            let mut file = job.open("/f", Some(0o644))?;
            job.write(&mut file, u64::from(rank.0) * 500, &[1 + rank.0 as u8; 500])?;
            job.sync(&mut file)?;
            job.barrier()?;
            if rank.0 == DEAD {
                return Err(Error::new(Kind::Invalid, "killed"));
            }
            loop {
                job.read(&mut file, 0, 2_000)?;
                job.barrier()?;
            }
        })
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = Rank::all(4).map(|rank| scope.spawn(move || live(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    for (rank, end) in ended.into_iter().enumerate() {
        let error = end.expect_err("one was killed").to_string();
        let wanted = if rank == DEAD as usize { "killed" } else { "rank 1 is lost" };
        assert!(error.contains(wanted), "rank {rank}: {error}");
    }
    // Only the store remains.
    let published = run(&store, (1, 1), &[], &options(1, 100), |mut job| {
        let mut file = job.open("/f", None)?;
        let bytes = job.read(&mut file, 0, 1 << 20)?;
        job.close(file)?;
        Ok((job.publish("after")?.0, bytes))
    });
    let (set, bytes) = published.expect("again").swap_remove(0);
    let wanted: Vec<u8> = (0..2_000).map(|at| 1 + (at / 500) as u8).collect();
    same(&bytes, &wanted, "read");
    same(&content(&repository, set, "/f"), &wanted, "published");
}

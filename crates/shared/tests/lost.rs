//! Ranks that die: the others are told which, nothing hangs, and what was synced is there.

use esker_base::{Error, Kind};

use crate::support::{assert_sound, content, memory, options, repository, run, same};

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
        // With fewer ranks, and other servers.
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

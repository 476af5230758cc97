// SPDX-License-Identifier: Apache-2.0
//! Attributes travel along the log-ring.

use esker_comm::Transport;
use esker_comm::threads;
use esker_shared::SharedJob;

use crate::support::{JOB, memory, options, repository};

#[test]
fn no_rank_handles_more_than_a_logarithm_of_messages_for_attributes() {
    for ranks in [1_u32, 2, 3, 7, 16, 33] {
        let store = memory();
        let repository = repository(&store);
        let bound = u64::from(u32::BITS - (ranks - 1).leading_zeros());
        let done = threads::run(ranks, 1, |transport| {
            let mut job = SharedJob::begin(transport, &repository, JOB, &[], &options(1, 100))?;
            let mut file = job.open("/file", Some(0o644))?;
            let me = job.segments().rank();
            job.write(&mut file, u64::from(me.0) * 10, &[1; 10])?;
            job.sync(&mut file)?;
            job.barrier()?;
            let before = job.segments().counters();
            let attributes = job.stat(&mut file)?;
            let after = job.segments().counters();
            assert_eq!(attributes.size, u64::from(ranks) * 10);
            job.barrier()?;
            // A reduction and a broadcast: each within the bound, in both directions.
            assert!(after.received_messages - before.received_messages <= bound, "{me}");
            assert!(after.sent_messages - before.sent_messages <= bound, "{me}");
            if me.0 == 0 {
                assert!(after.received_messages - before.received_messages <= bound);
                assert!(after.sent_messages - before.sent_messages <= bound);
            }
            job.close(file).map(drop)
        });
        done.unwrap_or_else(|error| panic!("{ranks} ranks: {error:?}"));
    }
}

#[test]
fn counters_are_those_of_the_transport() {
    threads::run(2, 1, |transport| {
        transport.barrier()?;
        assert_eq!(transport.counters().sent_messages, 1);
        Ok(())
    })
    .expect("two ranks");
}

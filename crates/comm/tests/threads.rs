// SPDX-License-Identifier: Apache-2.0
//! Ranks that are threads: conformance at several sizes, and behavior when one fails.

use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_comm::threads::{ThreadOptions, run, run_with, transports};
use esker_comm::{Channel, NodeMap, Rank, Router, RouterOptions, Routing, Transport, conformance};

const DATA: Channel = Channel(1);

/// So long that only a deadlock exceeds it.
const DEADLINE: Duration = Duration::from_secs(30);

fn conform(nodes: NodeMap, options: &ThreadOptions) {
    run_with(nodes, options, |transport| {
        conformance::all(transport);
        Ok(())
    })
    .expect("every rank conforms");
}

fn conform_evenly(ranks: u32, per_node: u32) {
    let nodes = NodeMap::even(ranks, per_node).expect("some ranks");
    conform(nodes, &ThreadOptions { deadline: DEADLINE, ..ThreadOptions::default() });
}

#[test]
fn one_rank_conforms() {
    conform_evenly(1, 1);
}

#[test]
fn few_ranks_conform() {
    for (ranks, per_node) in [(2, 1), (2, 2), (3, 2), (4, 1), (5, 5), (16, 4)] {
        conform_evenly(ranks, per_node);
    }
}

#[test]
fn ranks_on_uneven_nodes_conform() {
    let labels = [0, 1, 1, 2, 2, 2, 0, 3, 4, 4, 4, 4, 4, 5, 6, 1];
    let nodes = NodeMap::of_labels(&labels).unwrap();
    conform(nodes, &ThreadOptions { deadline: DEADLINE, ..ThreadOptions::default() });
}

/// A rank that drops its transport has left the job, and the others wait for it no longer.
#[test]
fn a_rank_whose_transport_is_dropped_is_lost_to_the_others() {
    let options = ThreadOptions { deadline: DEADLINE, ..ThreadOptions::default() };
    let mut transports = transports(NodeMap::even(2, 1).unwrap(), &options);
    drop(transports.remove(1));
    let error = transports[0].receive(&[DATA], DEADLINE).expect_err("it is gone");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("rank 1"), "{error}");
}

/// With channels of one message every send waits for its receiver.
#[test]
fn the_smallest_channels_do() {
    let options = ThreadOptions { channel_bytes_max: 1, deadline: DEADLINE };
    conform(NodeMap::even(9, 3).unwrap(), &options);
}

#[test]
fn a_node_of_256_ranks_conforms() {
    conform_evenly(256, 16);
}

#[test]
fn a_rank_that_fails_is_named_to_all() {
    let error = run(8, 4, |transport| -> Result<()> {
        if transport.rank() == Rank(5) {
            return Err(Error::new(Kind::NoSpace, "the disk is full"));
        }
        // No rank sends; all get the error.
        let error = transport.receive_soon(&[DATA], "nothing").unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("rank 5"), "{error}");
        Err(error)
    })
    .unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "the first cause is reported: {error}");
    assert!(error.to_string().contains("rank 5: the disk is full"), "{error}");
}

/// Symptom: commands that ran as one rank began their errors with "rank 0: ".
#[test]
fn the_only_rank_is_not_named() {
    let error = run(1, 1, |_| -> Result<()> { Err(Error::new(Kind::NoSpace, "no room")) });
    assert_eq!(error.unwrap_err().to_string(), "no room");
}

#[test]
fn a_barrier_and_a_flush_end_when_a_rank_fails() {
    for routing in [Routing::Direct, Routing::ThreeHop] {
        let error = run(12, 4, |transport| {
            if transport.rank() == Rank(7) {
                return Err(Error::new(Kind::Invalid, "bad input"));
            }
            let mut router = Router::new(transport, RouterOptions::new(routing))?;
            let done = router.flush(&mut |_, _| Ok(()));
            assert!(done.unwrap_err().to_string().contains("rank 7"));
            let again = router.push(Rank(0), b"x", &mut |_, _| Ok(())).unwrap_err();
            assert_eq!(again.kind(), Kind::Closed);
            router.transport().barrier()
        })
        .unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    }
}

#[test]
fn what_arrived_before_a_loss_is_received() {
    let error = run(2, 1, |transport| {
        if transport.rank() == Rank(1) {
            transport.send(Rank(0), DATA, b"last words".to_vec())?;
            return Err(Error::new(Kind::Invalid, "bad input"));
        }
        // Only after the other rank is lost.
        while transport.receive(&[], Duration::from_millis(1)).is_ok() {}
        assert_eq!(transport.receive(&[DATA], Duration::ZERO)?.unwrap().bytes, b"last words");
        transport.receive(&[DATA], Duration::ZERO).map(|_| ())
    })
    .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

#[test]
fn who_has_left_takes_no_messages_and_comes_to_no_barrier() {
    run(2, 1, |transport| {
        if transport.rank() == Rank(1) {
            return Ok(());
        }
        let error = loop {
            if let Err(error) = transport.send(Rank(1), DATA, Vec::new()) {
                break error;
            }
        };
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("rank 1 has left"), "{error}");
        let error = transport.barrier().unwrap_err();
        assert!(error.to_string().contains("rank 1 has left"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn nothing_waits_longer_than_the_deadline() {
    let options = ThreadOptions { deadline: Duration::from_millis(100), channel_bytes_max: 1 };
    run_with(NodeMap::even(3, 3).unwrap(), &options, |transport| {
        if transport.rank() == Rank(0) {
            let error = transport.receive_soon(&[DATA], "an answer").unwrap_err();
            assert!(error.to_string().contains("an answer did not come"), "{error}");
            let fill = |transport: &mut dyn Transport| {
                transport.send(Rank(1), DATA, vec![0])?;
                transport.send(Rank(1), DATA, vec![0])
            };
            let error = fill(transport).unwrap_err();
            assert!(error.to_string().contains("rank 1 takes nothing"), "{error}");
            let error = transport.barrier().unwrap_err();
            assert!(error.to_string().contains("at a barrier"), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
#[should_panic(expected = "rank 2 fell over")]
fn a_panic_is_passed_on() {
    let _ = run(4, 2, |transport| {
        assert!(transport.rank() != Rank(2), "rank 2 fell over");
        transport.barrier()
    });
}

#[test]
fn a_thousand_ranks_meet() {
    run(1024, 32, |transport| {
        transport.barrier()?;
        let mut sum = 0;
        let options = RouterOptions { batch_bytes: 512, ..RouterOptions::new(Routing::ThreeHop) };
        let mut router = Router::new(transport, options)?;
        let mut sink = |from: Rank, record: &[u8]| {
            assert_eq!(record, from.0.to_le_bytes());
            sum += 1;
            Ok(())
        };
        let me = router.transport().rank();
        for step in 0..8 {
            let to = Rank((me.0 + step * 129) % 1024);
            router.push(to, &me.0.to_le_bytes(), &mut sink)?;
        }
        router.flush(&mut sink)?;
        assert_eq!(sum, 8);
        Ok(())
    })
    .unwrap();
}

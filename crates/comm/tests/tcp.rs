// SPDX-License-Identifier: Apache-2.0
//! TCP ranks: conformance, losses by name, connections by strangers.
//!
//! Ranks are threads here, each with its own sockets; tests/launch.rs runs processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::store::MemoryStore;
use esker_base::{Clock, Error, Kind, Result, Store};
use esker_comm::job::RankContext;
use esker_comm::tcp::{TcpOptions, TcpTransport, run};
use esker_comm::{
    Channel, Rank, Router, RouterOptions, Routing, SendOutcome, Transport, conformance,
};

const DATA: Channel = Channel(1);

fn job(rank: Rank, size: u32, per_node: u32) -> RankContext {
    let node = (rank.0 / per_node).to_string();
    RankContext { id: "test".into(), rank, size, node, address: None, meet: None }
}

/// The result of each rank, in rank order.
fn ranks<R: Send>(
    size: u32,
    per_node: u32,
    options: &TcpOptions,
    work: impl Fn(&mut TcpTransport) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let store = MemoryStore::default();
    std::thread::scope(|scope| {
        let start = |rank| {
            let (store, work) = (&store, &work);
            scope.spawn(move || run(store, &job(rank, size, per_node), options, work))
        };
        let threads: Vec<_> = Rank::all(size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Waits until `is_so`, for as long as a slow machine may take.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end_ns = SystemClock.monotonic_ns() + 60_000_000_000;
    while !is_so() {
        assert!(SystemClock.monotonic_ns() < end_ns, "not in a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn options() -> TcpOptions {
    TcpOptions { deadline: Duration::from_secs(30), ..TcpOptions::default() }
}

fn conform(size: u32, per_node: u32, options: &TcpOptions) {
    let done = ranks(size, per_node, options, |transport| {
        conformance::all(transport);
        Ok(())
    });
    done.into_iter().for_each(|done| done.expect("every rank conforms"));
}

#[test]
fn one_rank_conforms() {
    conform(1, 1, &options());
}

#[test]
fn few_ranks_conform() {
    for (size, per_node) in [(2, 1), (3, 2), (5, 5)] {
        conform(size, per_node, &options());
    }
}

#[test]
fn sixteen_ranks_conform() {
    conform(16, 4, &options());
}

#[test]
fn the_smallest_channels_do() {
    conform(4, 2, &TcpOptions { channel_bytes_max: 1, ..options() });
}

/// The errors of the other ranks when `rank` of `size` leaves as `go` does.
fn losing(size: u32, rank: Rank, go: impl Fn() -> Result<()> + Sync) -> Vec<Error> {
    let answers = ranks(size, 2, &options(), |transport| {
        if transport.rank() == rank {
            return go();
        }
        // No rank sends to it: the ranks that watch it report its loss.
        loop {
            transport.receive(&[DATA], Duration::from_secs(1))?;
        }
    });
    let others = answers.into_iter().enumerate().filter(|(at, _)| *at != rank.index());
    others.map(|(_, answer)| answer.expect_err("a rank is lost")).collect()
}

#[test]
fn a_rank_that_fails_is_named_to_all() {
    for error in losing(9, Rank(4), || Err(Error::new(Kind::NoSpace, "full"))) {
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("rank 4 is lost"), "{error}");
    }
}

#[test]
fn a_flush_ends_when_a_rank_is_lost() {
    for routing in [Routing::Direct, Routing::ThreeHop] {
        let answers = ranks(6, 2, &options(), |transport| {
            if transport.rank() == Rank(5) {
                return Err(Error::new(Kind::Invalid, "bad input"));
            }
            let mut router = Router::new(transport, RouterOptions::new(routing))?;
            router.flush(&mut |_, _| Ok(()))
        });
        for (rank, answer) in answers.into_iter().enumerate() {
            let error = answer.expect_err("a rank is lost");
            let expected = if rank == 5 { "bad input" } else { "rank 5 is lost" };
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

/// Symptom: a rank that first sent to a rank after its death, without a connection to it, got the
/// error that it cannot be reached, instead of that it is lost.
/// Cause: a refused connection counted as a verdict.
/// Fix: the sender waits for a report of the ranks that watch.
#[test]
fn who_is_refused_by_a_rank_that_died_hears_that_it_is_lost() {
    let (port, was_refused) = (AtomicU16::new(0), AtomicBool::new(false));
    let connected = AtomicU32::new(0);
    let answers = ranks(6, 2, &options(), |transport| {
        // A rank that is still connecting would hear of the loss then, and make no calls here.
        connected.fetch_add(1, Ordering::SeqCst);
        wait_until("all are connected", || connected.load(Ordering::SeqCst) == 6);
        match transport.rank() {
            Rank(5) => {
                port.store(transport.port(), Ordering::SeqCst);
                return Err(Error::new(Kind::Invalid, "bad input"));
            }
            // Rank 2 has no connection to rank 5; 0, 1, 3 and 4 have, and make no calls for a
            // while.
            Rank(2) => {
                let is_gone = || match port.load(Ordering::SeqCst) {
                    0 => false,
                    port => TcpStream::connect(("127.0.0.1", port)).is_err(),
                };
                wait_until("rank 5 refuses connections", is_gone);
                let mut send = || -> Result<()> {
                    let sent = transport.try_send(Rank(5), DATA, vec![1])?;
                    was_refused.fetch_or(sent != SendOutcome::Done, Ordering::SeqCst);
                    transport.receive(&[DATA], Duration::from_millis(1)).map(drop)
                };
                loop {
                    if let Err(error) = send() {
                        was_refused.store(true, Ordering::SeqCst);
                        return Err(error);
                    }
                }
            }
            _ => wait_until("rank 2 is refused", || was_refused.load(Ordering::SeqCst)),
        }
        transport.barrier()
    });
    for (rank, answer) in answers.into_iter().enumerate() {
        let error = answer.expect_err("a rank is lost");
        let expected = if rank == 5 { "bad input" } else { "rank 5 is lost" };
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn who_has_left_takes_no_messages_and_comes_to_no_barrier() {
    let answers = ranks(3, 1, &options(), |transport| {
        match transport.rank() {
            Rank(1) => return Ok(()),
            Rank(2) => return transport.receive_soon(&[DATA], "the end").map(|_| ()),
            _ => {}
        }
        let error = loop {
            match transport.try_send(Rank(1), DATA, vec![0; 1000]) {
                Ok(SendOutcome::Done) => {}
                Ok(SendOutcome::Full(_)) => {
                    transport.receive(&[DATA], Duration::from_millis(10))?;
                }
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("rank 1 has left"), "{error}");
        let error = transport.barrier().expect_err("one is missing");
        assert!(error.to_string().contains("rank 1 has left"), "{error}");
        transport.send(Rank(2), DATA, Vec::new())
    });
    answers.into_iter().for_each(|answer| answer.expect("nobody is lost"));
}

#[test]
fn what_was_sent_before_leaving_arrives() {
    let answers = ranks(2, 1, &options(), |transport| {
        const MESSAGES: u32 = 100;
        if transport.rank() == Rank(0) {
            for number in 0..MESSAGES {
                transport.send(Rank(1), DATA, vec![number as u8; 50_000])?;
            }
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
        for number in 0..MESSAGES {
            let message = transport.receive_soon(&[DATA], "what was sent")?;
            assert_eq!(message.bytes, vec![number as u8; 50_000]);
        }
        Ok(())
    });
    answers.into_iter().for_each(|answer| answer.expect("nobody is lost"));
}

#[test]
fn a_job_that_has_met_leaves_nothing_in_the_store() {
    let store = MemoryStore::default();
    std::thread::scope(|scope| {
        for rank in Rank::all(4) {
            let store = &store;
            scope.spawn(move || {
                let mut transport = TcpTransport::connect(store, &job(rank, 4, 2), &options())?;
                transport.barrier()?;
                assert_eq!(store.list("job/")?, []);
                transport.finish()
            });
        }
    });
}

#[test]
fn who_does_not_come_is_named_at_the_deadline() {
    let store = MemoryStore::default();
    let options = TcpOptions { deadline: Duration::from_millis(50), ..options() };
    let error = TcpTransport::connect(&store, &job(Rank(0), 3, 1), &options).expect_err("alone");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("as 1 2"), "{error}");
}

/// Everything that may arrive at a port: noise, silence, half a frame, a huge frame, a hello of
/// another job. None is admitted, disturbs the job or costs memory.
#[test]
fn strangers_are_refused() {
    let store = MemoryStore::default();
    let mut first = Vec::new();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut transport = TcpTransport::connect(&store, &job(Rank(1), 2, 1), &options())?;
            let port = transport.receive_soon(&[DATA], "a port")?.bytes;
            let port = u16::from_le_bytes(port.try_into().expect("two bytes"));
            let noise: [&[u8]; 5] = [
                b"GET / HTTP/1.1\r\n\r\n",
                &[0xff; 200],
                // A header that announces 2^24 - 1 bytes of a message.
                &[0xff, 0xff, 0xff, 0, 3, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3],
                &[36, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0],
                b"",
            ];
            let mut open = Vec::new();
            for bytes in noise {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
                stream.write_all(bytes).expect("it reads");
                open.push(stream);
            }
            // Connections that cannot be a handshake are closed; the others wait.
            for stream in &mut open[..3] {
                stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
                assert!(!matches!(stream.read(&mut [0; 100]), Ok(1..)), "it answers nothing");
            }
            transport.send(Rank(0), DATA, b"done".to_vec())?;
            transport.barrier()?;
            transport.finish()
        });
        let mut transport = TcpTransport::connect(&store, &job(Rank(0), 2, 1), &options()).unwrap();
        let port = transport.port();
        transport.send(Rank(1), DATA, port.to_le_bytes().to_vec()).unwrap();
        let message = transport.receive_soon(&[DATA], "the end").unwrap();
        first.extend_from_slice(&message.bytes);
        transport.barrier().unwrap();
        assert!(transport.connections().1 >= 3, "{:?}", transport.connections());
        assert!(transport.counters().buffered_bytes_max < 1 << 20);
        transport.finish().unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(first, b"done");
}

//! Sockets of one rank whose others are a test that speaks for all of them.

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Command;

use rustix::process::{Resource, getrlimit};

use super::super::door::STRANGERS_MAX;
use super::super::meeting::Entry;
use super::*;

const SECRET: Secret = Secret { opener: [1; 16], accepter: [2; 16] };
const CHANNEL: Channel = Channel(5);

/// Rank 0 of `size`, listening.
fn network(size: u32) -> Network {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    rustix::net::listen(&listener, super::super::BACKLOG).expect("it listens");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let entry = Entry { host: "127.0.0.1".into(), port, node: "0".into() };
    let nodes = NodeMap::even(size, size).expect("ranks");
    let met = Met { entries: vec![entry; size as usize], nodes, secret: SECRET };
    Network::new(Rank(0), met, listener, Options::default()).expect("a network")
}

/// Connections that the kernel keeps until they are accepted; here nobody does meanwhile.
fn backlog_max() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(128)
}

/// A connection of `from` that has said who it is.
fn dial(network: &Network, from: Rank) -> TcpStream {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, network.port())).expect("it listens");
    let hello = Hello { from, to: Rank(0), channel: CHANNEL }.encode(&SECRET);
    socket.write_all(&frame::header(frame::Kind::Hello, CHANNEL, &hello)).expect("it takes");
    socket.write_all(&hello).expect("it takes");
    socket
}

/// Symptom: ranks of a large job that all began to send to one at the same time could not reach it.
/// Cause: no more than 1,024 connections were let in before they had said who they are, and further
/// ones were closed. Fix: they wait.
#[test]
fn all_ranks_of_a_large_job_connect_at_once() {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Both ends are here; others of this process have some open, too.
    let ranks = 4096.min(files.saturating_sub(300) / 2).min(backlog_max());
    let ranks = u32::try_from(ranks).expect("some thousands");
    let mut network = network(ranks + 1);
    let sockets: Vec<TcpStream> = (1..=ranks).map(|from| dial(&network, Rank(from))).collect();
    for _ in 0..ranks {
        network.progress(Duration::from_millis(20)).expect("a look");
        if network.incoming.len() == sockets.len() {
            break;
        }
    }
    assert_eq!(network.incoming.len(), sockets.len());
    assert_eq!(network.connections(), (sockets.len(), 0), "nobody was turned away");
    if sockets.len() <= STRANGERS_MAX {
        println!("{ranks} ranks show nothing: more than {STRANGERS_MAX} would, of more open files");
    }
}

#[test]
fn strangers_wait_when_there_are_too_many_and_ranks_get_in_when_those_are_gone() {
    let mut network = network(2);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, network.port())).expect("a listener");
    let silent: Vec<TcpStream> = (0..STRANGERS_MAX).map(|_| connect()).collect();
    let rank = dial(&network, Rank(1));
    for _ in 0..20 {
        network.progress(Duration::from_millis(1)).expect("a look");
    }
    assert_eq!(network.connections(), (STRANGERS_MAX, 0));
    assert!(network.incoming.is_empty());
    drop(silent);
    while network.incoming.is_empty() {
        network.progress(Duration::from_millis(20)).expect("a look");
    }
    assert_eq!(network.connections(), (1, STRANGERS_MAX as u64));
    drop(rank);
}

const FEW_FILES: &str = "ESKER_TEST_FEW_FILES";

/// Symptom: a rank that could open no more files took all of a processor and said nothing. Cause:
/// the kernel tells of who waits at every look. Fix: the door is shut for a while.
#[test]
fn who_may_open_no_more_files_pauses_and_says_so_once() {
    let name = "tcp::network::tests::a_rank_with_few_files";
    let program = std::env::current_exe().expect("this program");
    let script = "ulimit -n 64; exec \"$0\" --exact \"$1\" --nocapture --test-threads 1";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program).arg(name).env(FEW_FILES, "1");
    let output = shell.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(said.matches("rank 0: cannot accept connections").count(), 1, "{said}");
}

/// What the test before this one runs with few files.
#[test]
fn a_rank_with_few_files() {
    if std::env::var_os(FEW_FILES).is_none() {
        return;
    }
    let mut network = network(2);
    let rank = dial(&network, Rank(1));
    let mut files = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    let begin_ns = SystemClock.monotonic_ns();
    let mut looks = 0;
    while SystemClock.monotonic_ns() < begin_ns + 350_000_000 {
        network.progress(Duration::from_secs(1)).expect("a look");
        looks += 1;
    }
    assert!(looks <= 20, "{looks} looks in 350 ms");
    assert!(network.incoming.is_empty());
    drop(files);
    while network.incoming.is_empty() {
        network.progress(Duration::from_secs(1)).expect("a look");
    }
    assert_eq!(network.connections(), (1, 0));
    drop(rank);
}

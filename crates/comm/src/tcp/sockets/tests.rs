// SPDX-License-Identifier: Apache-2.0
//! The sockets of one rank, with a test that plays all other ranks.

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Command;

use rustix::process::{Resource, getrlimit};

use super::super::acceptor::STRANGERS_MAX;
use super::super::rendezvous::RankAddress;
use super::*;

const SECRET: JobSecret = JobSecret([1; 32]);
const CHANNEL: Channel = Channel(5);

/// Rank 0 of `size`, listening.
fn network(size: u32) -> RankSockets {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    rustix::net::listen(&listener, super::super::BACKLOG).expect("it listens");
    listener.set_nonblocking(true).expect("a socket");
    let entries = vec![entry_of(&listener); size as usize];
    let nodes = NodeMap::even(size, size).expect("ranks");
    let ranks = MetRanks { entries, nodes, secret: SECRET };
    RankSockets::new(Rank(0), ranks, listener, TcpOptions::default()).expect("a network")
}

fn entry_of(listener: &TcpListener) -> RankAddress {
    let port = listener.local_addr().expect("an address").port();
    RankAddress { host: "127.0.0.1".into(), port, node: "0".into() }
}

/// Length of the kernel's accept backlog; the tests fill it before they accept.
fn backlog_max() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(128)
}

/// The opener's end of a connection to rank 0.
struct Dialed {
    socket: TcpStream,
    hello: HandshakeHello,
    challenge: Vec<u8>,
}

/// Connects as `from` and sends its hello.
fn dial(network: &RankSockets, from: Rank) -> Dialed {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, network.port())).expect("it listens");
    socket.set_nonblocking(true).expect("a socket");
    let hello = HandshakeHello {
        from,
        to: Rank(0),
        channel: CHANNEL,
        nonce: HandshakeNonce([from.0 as u8; 16]),
    };
    send(&socket, frame::TcpFrameKind::Hello, &hello.encode());
    Dialed { socket, hello, challenge: Vec::new() }
}

fn send(mut socket: &TcpStream, kind: frame::TcpFrameKind, payload: &[u8]) {
    let bytes = [&frame::header(kind, CHANNEL, payload), payload].concat();
    socket.write_all(&bytes).expect("it takes");
}

/// The bytes that the other end has sent so far.
fn received(mut socket: &TcpStream) -> Vec<u8> {
    let (mut all, mut bytes) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = socket.read(&mut bytes) {
        all.extend_from_slice(&bytes[..count]);
    }
    all
}

impl Dialed {
    /// Sends the proof, once the challenge has arrived.
    fn prove(&mut self) {
        if !self.challenge.is_empty() {
            return;
        }
        self.challenge = received(&self.socket);
        if let Some(challenge) = self.challenge.get(frame::HEADER_BYTES..) {
            let proof = SECRET.answer(&self.hello, challenge).expect("a challenge of rank 0");
            send(&self.socket, frame::TcpFrameKind::Proof, &proof);
        }
    }
}

/// Symptom: ranks of a large job that all began to send to one at the same time could not reach it.
/// Cause: at most 1,024 unauthenticated connections were kept, and further ones were closed.
/// Fix: further ones wait in the backlog.
#[test]
fn all_ranks_of_a_large_job_connect_at_once() {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Both ends are in this process, which has other files open too.
    let ranks = 4096.min(files.saturating_sub(300) / 2).min(backlog_max());
    let ranks = u32::try_from(ranks).expect("some thousands");
    let mut network = network(ranks + 1);
    let mut sockets: Vec<Dialed> = (1..=ranks).map(|from| dial(&network, Rank(from))).collect();
    for _ in 0..ranks {
        network.progress(Duration::from_millis(20)).expect("a look");
        sockets.iter_mut().for_each(Dialed::prove);
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
    let mut rank = dial(&network, Rank(1));
    for _ in 0..20 {
        network.progress(Duration::from_millis(1)).expect("a look");
    }
    assert_eq!(network.connections(), (STRANGERS_MAX, 0));
    assert!(network.incoming.is_empty());
    drop(silent);
    while network.incoming.is_empty() {
        network.progress(Duration::from_millis(20)).expect("a look");
        rank.prove();
    }
    assert_eq!(network.connections(), (1, STRANGERS_MAX as u64));
    drop(rank);
}

const FEW_FILES: &str = "ESKER_TEST_FEW_FILES";

/// Symptom: a rank at its limit of open files used a whole processor and reported nothing.
/// Cause: epoll reports a waiting connection at every poll.
/// Fix: the rank pauses accepting after a failure.
#[test]
fn who_may_open_no_more_files_pauses_and_says_so_once() {
    let name = "tcp::sockets::tests::a_rank_with_few_files";
    let program = std::env::current_exe().expect("this program");
    let script = "ulimit -n 64; exec \"$0\" --exact \"$1\" --nocapture --test-threads 1";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program).arg(name).env(FEW_FILES, "1");
    let output = shell.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(said.matches("rank 0: cannot accept connections").count(), 1, "{said}");
}

/// Run by the test above, in a process with a low limit of open files.
#[test]
fn a_rank_with_few_files() {
    if std::env::var_os(FEW_FILES).is_none() {
        return;
    }
    let mut network = network(2);
    let mut rank = dial(&network, Rank(1));
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
        network.progress(Duration::from_millis(20)).expect("a look");
        rank.prove();
    }
    assert_eq!(network.connections(), (1, 0));
    drop(rank);
}

fn progress(network: &mut RankSockets) {
    for _ in 0..20 {
        network.progress(Duration::from_millis(1)).expect("a look");
    }
}

/// Symptom: a process that listened on the port of a dead rank was accepted by all others as that
/// rank.
/// Cause: a hello carried half of the job's secret, and every process that sent that half was
/// welcome.
/// Fix: both ends prove that they know the secret, each for the other's nonce, and no part of it is
/// sent.
#[test]
fn a_stranger_at_the_port_of_a_dead_rank_gains_nothing() {
    let mut network = network(3);
    network.mark_connected();
    let own_port = network.port();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    network.peers = PeerTable::new(&[entry_of(&port), entry_of(&port), entry_of(&port)]);
    // Rank 0 connects to the process that has the port of rank 1.
    let sent = network.try_send(Rank(1), CHANNEL, b"for rank 1 alone".to_vec());
    assert_eq!(sent.expect("it is on its way"), SendOutcome::Done);
    let (caller, _) = port.accept().expect("a connection");
    caller.set_nonblocking(true).expect("a socket");
    progress(&mut network);
    let hello = received(&caller);
    let payload = &hello[frame::HEADER_BYTES..];
    assert_eq!(payload.len(), 36, "nothing behind the hello");
    let secret = SECRET.0;
    assert!(secret.windows(8).all(|part| !payload.windows(8).any(|sent| sent == part)));

    // The stranger repeats the hello to rank 0 as another rank, and returns all the bytes that it
    // receives.
    let connect = || {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, own_port)).expect("it listens");
        socket.set_nonblocking(true).expect("a socket");
        socket
    };
    let mut replayed = payload.to_vec();
    replayed[12..16].copy_from_slice(&1_u32.to_le_bytes());
    replayed[16..20].copy_from_slice(&0_u32.to_le_bytes());
    let stranger = connect();
    send(&stranger, frame::TcpFrameKind::Hello, &replayed);
    progress(&mut network);
    let challenge = received(&stranger);
    let challenge = &challenge[frame::HEADER_BYTES..];
    send(&stranger, frame::TcpFrameKind::Proof, &challenge[16..]);
    progress(&mut network);
    assert!(network.incoming.is_empty() && received(&stranger).is_empty(), "it is not welcome");
    assert_eq!(network.connections(), (1, 1));

    // Rank 0's own answer to the same hello does not make the stranger rank 1 either.
    send(&caller, frame::TcpFrameKind::Challenge, challenge);
    progress(&mut network);
    assert!(received(&caller).is_empty(), "no message, and no proof");
    let error = network.check_lost().and_then(|()| network.is_reachable(Rank(1)).map(drop));
    error.expect("rank 1 is lost only if those who watch it say so");
    assert_eq!(network.connections(), (0, 1));
}

/// A message sent directly after a proof is received, and a second connection of the same rank is
/// refused.
#[test]
fn messages_may_follow_a_proof_at_once() {
    let mut network = network(2);
    let (mut first, mut second) = (dial(&network, Rank(1)), dial(&network, Rank(1)));
    progress(&mut network);
    first.prove();
    send(&first.socket, frame::TcpFrameKind::Message, b"early");
    progress(&mut network);
    let message = network.take(&[CHANNEL]).expect("no loss").expect("a message");
    assert_eq!((message.from, &message.bytes[..]), (Rank(1), &b"early"[..]));
    second.prove();
    progress(&mut network);
    assert_eq!(network.connections(), (1, 1));
}

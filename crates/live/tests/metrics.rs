// SPDX-License-Identifier: Apache-2.0
//! Metrics of a server, as Prometheus reads them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Result};
use esker_live::LiveServerOptions;
use esker_live::client::{LiveDir, Request};

use crate::served::{LiveStore, server_options};

/// Options of a server with metrics.
fn options() -> LiveServerOptions {
    let metrics = Some("127.0.0.1:0".parse().expect("an address"));
    LiveServerOptions { metrics, ..server_options() }
}

/// Sends `request`, and returns everything that is answered.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = String::new();
    // The server may reset a connection whose bytes it has not read.
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

/// The value of the only line of `text` that begins with `name`.
fn value(text: &str, name: &str) -> f64 {
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect();
    assert_eq!(lines.len(), 1, "{name} in {text}");
    lines[0].parse().expect("a number")
}

#[test]
fn metrics_count_what_a_server_does() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve_with(options())?;
    let address = server.metrics_address().expect("an address");
    let mut tree = live.connect();
    let root = LiveDir::root();
    tree.change(Request::create(&root, 0o644, &[b"a"]).durable())?;
    let both = tree.connection().call(Request::create(&root, 0o644, &[b"a", b"b"]))?;
    assert_eq!(both.outcomes()?.iter().filter(|outcome| outcome.is_err()).count(), 1);
    tree.lookup(&root, b"b")?;
    let answer = get(address, "/metrics");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"));
    assert_eq!(value(text, r#"esker_live_requests_total{verb="create"}"#), 2.0);
    assert_eq!(value(text, r#"esker_live_requests_total{verb="lookup"}"#), 1.0);
    assert_eq!(value(text, r#"esker_live_requests_total{verb="rename"}"#), 0.0);
    assert_eq!(value(text, "esker_live_changes_total"), 3.0);
    assert_eq!(value(text, "esker_live_reads_total"), 1.0);
    assert_eq!(value(text, "esker_live_failures_total"), 1.0);
    assert_eq!(value(text, "esker_live_connections"), 1.0);
    assert_eq!(value(text, "esker_live_batch_seconds_count"), 3.0);
    assert!(value(text, "esker_live_commit_seconds_count") >= 1.0);
    assert!(value(text, "esker_live_log_bytes") > 0.0);
    assert!(value(text, "process_cpu_seconds_total") > 0.0);
    assert!(!text.contains(r#"verb="hello""#), "handshakes are no requests");
    // Each metric has a description.
    let names = |kind: &str| text.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!(names("# HELP"), names("# TYPE"));
    tree.close()?;
    server.end()
}

#[test]
fn other_requests_get_no_metrics_and_harm_nothing() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve_with(options())?;
    let address = server.metrics_address().expect("an address");
    assert!(get(address, "/").starts_with("HTTP/1.1 404"));
    let post = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    assert!(ask(address, post).starts_with("HTTP/1.1 405"));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    for garbage in ["\0\0\0\0", "GET\r\n\r\n", "\r\n\r\n\r\n\r\n", &long] {
        let mut stream = TcpStream::connect(address).expect("connect");
        let _ = stream.write_all(garbage.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200"));
    server.end()
}

/// Symptom: silent connections kept an honest reader waiting for ten seconds.
/// Cause: each of the few places was held until its connection's time was over.
/// Fix: a request's head must come within a second.
#[test]
fn silent_strangers_delay_metrics_by_little() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve_with(options())?;
    let address = server.metrics_address().expect("an address");
    let silent: Vec<_> = (0..16).map(|_| TcpStream::connect(address).expect("connect")).collect();
    let clock = SystemClock;
    let began_ns = clock.monotonic_ns();
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200"));
    let waited = Duration::from_nanos(clock.monotonic_ns() - began_ns);
    assert!(waited < Duration::from_secs(8), "it took {waited:?}");
    drop(silent);
    server.end()
}

/// Symptom: a server that many short commands used took no more clients of their user. Cause: clients that
/// left without waiting for an answer counted as if they might come back. Fix: that they leave counts,
/// also if nobody takes the answer.
#[test]
fn clients_that_leave_are_forgotten() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve_with(options())?;
    let address = server.metrics_address().expect("an address");
    for _ in 0..100 {
        let mut tree = live.connect();
        tree.list(&LiveDir::root())?;
        tree.leave();
    }
    let clients = || {
        let answer = get(address, "/metrics");
        value(answer.split_once("\r\n\r\n").expect("a head").1, "esker_live_clients")
    };
    for _ in 0..100 {
        if clients() == 0.0 {
            return server.end();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{} clients of 100 are remembered", clients());
}

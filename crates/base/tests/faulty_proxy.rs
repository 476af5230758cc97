// SPDX-License-Identifier: Apache-2.0
//! Faulty proxy: an HTTP/1.1 proxy between a store and its server that harms selected requests.
//!
//! A test selects the request and the fault: the n-th from now on, the next of a kind or, from a
//! seed, one in a given number. Requests are numbered in the order in which they have arrived
//! whole. Each is forwarded on a connection of its own, so that a fault in one does not affect the
//! next. Threads end with the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use esker_base::Random;

/// Maximum bytes of the head of a request or an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The time for which a delayed request waits.
const DELAY: Duration = Duration::from_millis(30);

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is forwarded late.
    Delay,
    /// The request does not reach the server, and the connection ends.
    DropRequest,
    /// The server executes the request, and the connection ends without an answer.
    DropAnswer,
    /// The server executes the request, and the connection ends in the middle of the answer.
    CutAnswer,
    /// The server executes the request twice, and the second answer arrives.
    Duplicate,
    /// The server executes the request, and the answer is a 500.
    Fail,
    /// The server does not execute the request, and the answer is a 503.
    Refuse,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 7] = [
        Self::Delay,
        Self::DropRequest,
        Self::DropAnswer,
        Self::CutAnswer,
        Self::Duplicate,
        Self::Fail,
        Self::Refuse,
    ];
}

/// A proxy on the loopback interface.
pub struct FaultyProxy {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    /// Signalled when the proxy stops hanging.
    released: Condvar,
}

#[derive(Default)]
struct Plan {
    requests: u64,
    next: Option<(Target, Fault)>,
    /// Generator and chances: one in that many requests is harmed.
    random: Option<(Random, u64)>,
    /// If not empty, requests with other numbers are refused in addition.
    passed: Vec<u64>,
    hangs: bool,
}

enum Target {
    Number(u64),
    Kind { method: &'static str, containing: &'static str },
}

impl FaultyProxy {
    /// Starts a proxy for the server at `server`, which harms nothing yet.
    pub fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared = Arc::new(Shared::default());
        let (server, of_threads) = (server.to_owned(), Arc::clone(&shared));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (server, shared) = (server.clone(), Arc::clone(&of_threads));
                std::thread::spawn(move || serve(client, &server, &shared));
            }
        });
        Self { address, shared }
    }

    /// The proxy's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stops all harm, and counts requests from 0.
    pub fn reset(&self) {
        *self.plan() = Plan::default();
        self.shared.released.notify_all();
    }

    /// The number of requests since the last reset.
    pub fn requests(&self) -> u64 {
        self.plan().requests
    }

    /// Harms the `number`-th request from now on, counted from 1, and no other.
    pub fn harm(&self, number: u64, fault: Fault) {
        *self.plan() = Plan { next: Some((Target::Number(number), fault)), ..Plan::default() };
    }

    /// Harms the next request of `method` whose head contains `containing`.
    pub fn harm_next(&self, method: &'static str, containing: &'static str, fault: Fault) {
        let target = Target::Kind { method, containing };
        *self.plan() = Plan { next: Some((target, fault)), ..Plan::default() };
    }

    /// Harms one in `chances` requests, selected by `seed`.
    pub fn harm_at_random(&self, seed: u64, chances: u64) {
        let random = Some((Random::from_seed(seed), chances));
        *self.plan() = Plan { random, ..Plan::default() };
    }

    /// Returns whether the selected request has been harmed.
    pub fn has_harmed(&self) -> bool {
        self.plan().next.is_none()
    }

    /// Refuses all requests except those with these numbers, counted from 1, in addition to other
    /// faults.
    pub fn refuse_all_but(&self, numbers: &[u64]) {
        self.plan().passed = numbers.to_vec();
    }

    /// Answers nothing until the next reset, but closes no connection either.
    pub fn hang(&self) {
        self.plan().hangs = true;
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.lock().expect("no panic")
    }
}

impl Plan {
    fn fault_of(&mut self, request: &Message) -> Option<Fault> {
        self.requests += 1;
        if !self.passed.is_empty() && !self.passed.contains(&self.requests) {
            return Some(Fault::Refuse);
        }
        if let Some((random, chances)) = &mut self.random
            && random.one_in(*chances)
        {
            let index = random.below(Fault::ALL.len() as u64);
            return Some(Fault::ALL[usize::try_from(index).expect("a few")]);
        }
        let is_met = match &self.next {
            Some((Target::Number(number), _)) => *number == self.requests,
            Some((Target::Kind { method, containing }, _)) => {
                request.head().starts_with(method) && request.head().contains(containing)
            }
            None => false,
        };
        if is_met { self.next.take().map(|(_, fault)| fault) } else { None }
    }
}

/// Forwards requests from `client`, one at a time, until either side closes.
fn serve(mut client: TcpStream, server: &str, shared: &Shared) {
    // Send small answers at once.
    client.set_nodelay(true).expect("a socket");
    let mut requests = BufReader::new(client.try_clone().expect("a handle"));
    while let Some(request) = Message::read(&mut requests, |_| false) {
        let fault = {
            let plan = shared.plan.lock().expect("no panic");
            let mut plan = shared.released.wait_while(plan, |plan| plan.hangs).expect("no panic");
            plan.fault_of(&request)
        };
        let Some(answer) = answer_of(&request, fault, server) else { break };
        let kept = match fault {
            Some(Fault::CutAnswer) => answer.head_bytes / 2 + answer.bytes.len() / 2,
            _ => answer.bytes.len(),
        };
        if client.write_all(&answer.bytes[..kept]).is_err() || kept < answer.bytes.len() {
            break;
        }
    }
    // The client may already be gone.
    drop(client.shutdown(Shutdown::Both));
}

/// Returns the answer to `request`; `None` if the connection ends instead.
fn answer_of(request: &Message, fault: Option<Fault>, server: &str) -> Option<Message> {
    match fault {
        None | Some(Fault::CutAnswer) => pass(request, server),
        Some(Fault::Delay) => {
            std::thread::sleep(DELAY);
            pass(request, server)
        }
        Some(Fault::DropRequest) => None,
        Some(Fault::DropAnswer) => {
            pass(request, server);
            None
        }
        Some(Fault::Duplicate) => {
            pass(request, server);
            pass(request, server)
        }
        Some(Fault::Fail) => {
            pass(request, server);
            Some(Message::empty("500 Internal Server Error"))
        }
        Some(Fault::Refuse) => Some(Message::empty("503 Service Unavailable")),
    }
}

/// Returns the server's answer to `request`.
fn pass(request: &Message, server: &str) -> Option<Message> {
    let mut server = TcpStream::connect(server).ok()?;
    server.write_all(&request.bytes).ok()?;
    let is_head = request.head().starts_with("HEAD ");
    Message::read(&mut BufReader::new(server), |status| is_head || [204, 304].contains(&status))
}

/// A request or an answer.
struct Message {
    bytes: Vec<u8>,
    /// Bytes of the head, including the empty line.
    head_bytes: usize,
}

impl Message {
    fn empty(status: &str) -> Self {
        let bytes = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes();
        Self { head_bytes: bytes.len(), bytes }
    }

    fn head(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes[..self.head_bytes])
    }

    /// Reads the next message of `stream`; `None` if that has ended. An answer with a status that
    /// `is_bare` has no body, regardless of its head.
    fn read(stream: &mut impl BufRead, is_bare: impl Fn(u16) -> bool) -> Option<Self> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let line = stream.take(HEAD_BYTES_MAX as u64).read_until(b'\n', &mut bytes).ok()?;
            assert!(bytes.len() <= HEAD_BYTES_MAX, "a head has an end");
            if line == 0 {
                return None;
            }
        }
        let mut message = Self { head_bytes: bytes.len(), bytes };
        let head = message.head().to_ascii_lowercase();
        let status = head.strip_prefix("http/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        if status.is_some_and(is_bare) {
            return Some(message);
        }
        let field = |name: &str| {
            let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(str::trim)
        };
        if field("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            message.read_chunks(stream)?;
        } else if let Some(length) = field("content-length") {
            let start = message.bytes.len();
            message.bytes.resize(start + length.parse::<usize>().ok()?, 0);
            stream.read_exact(&mut message.bytes[start..]).ok()?;
        }
        Some(message)
    }

    fn read_chunks(&mut self, stream: &mut impl BufRead) -> Option<()> {
        loop {
            let line_start = self.bytes.len();
            stream.read_until(b'\n', &mut self.bytes).ok()?;
            let line = String::from_utf8_lossy(&self.bytes[line_start..]).into_owned();
            let digits = line.split([';', '\r']).next().unwrap_or_default();
            let bytes = usize::from_str_radix(digits, 16).ok()?;
            // Includes the line end after it.
            let start = self.bytes.len();
            self.bytes.resize(start + bytes + 2, 0);
            stream.read_exact(&mut self.bytes[start..]).ok()?;
            if bytes == 0 {
                return Some(());
            }
        }
    }
}

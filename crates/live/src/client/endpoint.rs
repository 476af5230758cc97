// SPDX-License-Identifier: Apache-2.0
//! Endpoint: a byte stream to a server, after the handshake.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use esker_base::process::ProcessIdentity;
use esker_base::wire::WireInput;
use esker_base::{Error, Kind, Random, Result};
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, socket_peercred,
};

use crate::proof::UserSecret;
use crate::server_address::ServerAddress;
use crate::wire::{
    CONNECTION_NONCE_BYTES, ClientHello, FRAME_BYTES_MAX, FrameHeader, HelloMethod, ServerWelcome,
    Verb, encode_identity, finish_frame, split_frame, start_frame, take_status,
};

/// Time that a server has for each step of a handshake: after that, another may have taken over.
const STEP_PATIENCE: Duration = Duration::from_secs(1);
/// Time without a sign of the server after which the kernel asks for one, and then asks again.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(5);
/// Requests for one without an answer, after which a connection is lost.
const KEEPALIVES_LOST: u32 = 3;
/// Time to open a TCP connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// A stream to a server.
#[derive(Debug)]
pub(super) enum Endpoint {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Identification of a client to servers.
#[derive(Clone, Debug)]
pub(super) struct ClientIdentity {
    /// Number of the client.
    pub client: u64,
    /// The set of the live namespace.
    pub set: SetId,
    /// The user's secret, if there is one.
    pub secret: Option<UserSecret>,
    /// The user for whom the client acts, for servers that believe the secret.
    pub identity: Identity,
}

impl Endpoint {
    /// Connects to the server at `address` and proves who the client is.
    ///
    /// # Errors
    /// `Unavailable` if nothing accepts connections there; `Denied` and `Conflict` if the server
    /// refuses the client.
    pub fn connect(address: &ServerAddress, who: &ClientIdentity) -> Result<(Self, ServerWelcome)> {
        let (stream, method) = Self::open(address, who)?;
        let peer = server_at(address);
        let mut nonce = [0; CONNECTION_NONCE_BYTES];
        Random::from_system().fill(&mut nonce);
        let hello = ClientHello { method, client: who.client, set: who.set, nonce };
        stream.send(Verb::Hello, &hello.encode(), &peer)?;
        if method == HelloMethod::Secret {
            let challenge = stream.receive(Verb::Challenge, &peer)?;
            let identity = encode_identity(&who.identity);
            let secret = who.secret.as_ref().expect("the method needs it");
            let answer = secret.answer(&hello, &challenge, &identity).ok_or_else(|| {
                let what = format!("{peer} does not know this user's secret");
                Error::new(Kind::Denied, what)
            })?;
            stream.send(Verb::Proof, &answer, &peer)?;
        }
        let welcome = ServerWelcome::decode(&stream.receive(Verb::Welcome, &peer)?, &peer)?;
        stream.set_nonblocking().map_err(|error| Error::io(error, "use a socket"))?;
        Ok((stream, welcome))
    }

    /// Opens a stream: over a Unix socket on the server's own machine, otherwise over TCP.
    fn open(address: &ServerAddress, who: &ClientIdentity) -> Result<(Self, HelloMethod)> {
        let is_here = address.boot == ProcessIdentity::current().boot;
        if let Some(name) = address.unix.as_ref().filter(|_| is_here) {
            match Self::open_unix(name, address) {
                Ok(stream) => return Ok((Self::Unix(stream), HelloMethod::PeerCredentials)),
                // The server may be in another network namespace of the machine.
                Err(error) if address.tcp.is_none() => return Err(error),
                Err(_) => {}
            }
        }
        let Some(tcp) = &address.tcp else {
            let what = format!(
                "{} accepts connections only of its own machine; it was begun without --listen",
                server_at(address)
            );
            return Err(Error::new(Kind::Unavailable, what));
        };
        if who.secret.is_none() {
            let what = "a server on another machine asks for this user's secret, and there is none";
            return Err(Error::new(Kind::Denied, what));
        }
        let failed = |error| unreachable(error, &format!("{} at {tcp}", server_at(address)));
        let mut connected = Err(io::ErrorKind::NotFound.into());
        for place in tcp.to_socket_addrs().map_err(failed)? {
            connected = TcpStream::connect_timeout(&place, CONNECT_PATIENCE);
            if connected.is_ok() {
                break;
            }
        }
        let stream = connected.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        notice_loss(&stream).map_err(|errno| failed(errno.into()))?;
        for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
            set(&stream, Some(STEP_PATIENCE)).map_err(failed)?;
        }
        Ok((Self::Tcp(stream), HelloMethod::Secret))
    }

    fn open_unix(name: &str, address: &ServerAddress) -> Result<UnixStream> {
        let failed = |error| unreachable(error, &server_at(address));
        let socket = UnixAddress::from_abstract_name(name).map_err(failed)?;
        let stream = UnixStream::connect_addr(&socket).map_err(failed)?;
        // Anybody may listen at such a name once its server is gone.
        let server = socket_peercred(&stream).map_err(|errno| failed(errno.into()))?;
        if server.uid.as_raw() != address.uid {
            let what = format!(
                "user {} listens in place of {}, which user {} ran",
                server.uid.as_raw(),
                server_at(address),
                address.uid
            );
            return Err(Error::new(Kind::Denied, what));
        }
        stream.set_read_timeout(Some(STEP_PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(STEP_PATIENCE)).map_err(failed)?;
        Ok(stream)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(true),
            Self::Tcp(stream) => stream.set_nonblocking(true),
        }
    }

    fn send(&self, verb: Verb, payload: &[u8], peer: &str) -> Result<()> {
        let mut frame = Vec::new();
        start_frame(&mut frame);
        frame.extend_from_slice(payload);
        finish_frame(&mut frame, 0, &FrameHeader::new(verb, 0));
        let mut stream = self;
        stream.write_all(&frame).map_err(|error| unreachable(error, peer))
    }

    fn receive(&self, verb: Verb, peer: &str) -> Result<Vec<u8>> {
        let mut received = Vec::new();
        loop {
            if let Some((header, payload)) = split_frame(&received, FRAME_BYTES_MAX, peer)? {
                return match header.verb {
                    Verb::Goodbye => Err(refusal(&received[payload], peer)),
                    found if found == verb => Ok(received[payload].to_vec()),
                    other => {
                        let what = format!("{other:?} in place of {verb:?}");
                        Err(Error::corrupt(peer, 4, what))
                    }
                };
            }
            let mut piece = [0; 4096];
            let count = (&mut &*self).read(&mut piece).map_err(|error| unreachable(error, peer))?;
            if count == 0 {
                return Err(Error::new(Kind::Unavailable, format!("{peer} is ending")));
            }
            received.extend_from_slice(&piece[..count]);
        }
    }
}

/// The reason for which the server at `peer` refuses the client.
fn refusal(payload: &[u8], peer: &str) -> Error {
    match take_status(&mut WireInput::new(payload)) {
        Ok(Err(why)) => why.within(peer),
        _ => Error::corrupt(peer, 0, "a refusal without a reason"),
    }
}

/// The server at `address`, in words.
fn server_at(address: &ServerAddress) -> String {
    format!("the server on {} (process {})", address.host, address.pid)
}

/// Makes the loss of the other side end the connection while nothing is sent. A server that is alive
/// and takes nothing for a while is not lost.
fn notice_loss(stream: &TcpStream) -> rustix::io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE_PAUSE)?;
    set_tcp_keepintvl(stream, KEEPALIVE_PAUSE)?;
    set_tcp_keepcnt(stream, KEEPALIVES_LOST)
}

fn unreachable(error: io::Error, peer: &str) -> Error {
    Error::new(Kind::Unavailable, format!("{peer} does not answer")).with_source(error)
}

/// Through a reference, so that a thread can wait for the socket while others send.
impl Read for &Endpoint {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Endpoint::Unix(stream) => (&*stream).read(buffer),
            Endpoint::Tcp(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Endpoint {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Endpoint::Unix(stream) => (&*stream).write(bytes),
            Endpoint::Tcp(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

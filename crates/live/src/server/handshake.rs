// SPDX-License-Identifier: Apache-2.0
//! Handshake, the server's side: finds out for which user a new connection acts.
//!
//! Over a Unix socket the kernel names the user. Over TCP the client must know the secret of this
//! server's user, and acts for that user; if that is the superuser, who could become anybody, the
//! client may act for any user.

use std::sync::Arc;

use esker_base::{Error, Kind, Random, Result};
use esker_fs::stack::identity::Identity;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::admission::AdmittedConnection;
use super::client_files::ClientFiles;
use super::served_namespace::ServedNamespace;
use crate::wire::{
    CONNECTION_NONCE_BYTES, ClientHello, FrameHeader, GREETING_BYTES_MAX, HelloMethod, Verb,
    decode_identity, finish_frame, put_status, split_frame, start_frame,
};

/// A client that has proved its user.
#[derive(Debug)]
pub(super) struct GreetedClient {
    pub client: u64,
    pub identity: Identity,
    /// The files that it has open.
    pub files: Arc<ClientFiles>,
    pub admitted: AdmittedConnection,
}

/// Performs the handshake with `peer` on `stream`, whose other end is a process of `user` if the
/// kernel knows it. Bytes after the handshake stay in `received`.
///
/// # Errors
/// `Denied` for a user who may not connect; `Unavailable` for one connection too many; `Corrupt`
/// for other bytes than a client's; `Conflict` for a client of another namespace.
pub(super) async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    served: &ServedNamespace,
    stream: &mut S,
    user: Option<Identity>,
    peer: &str,
    received: &mut Vec<u8>,
) -> Result<GreetedClient> {
    let hello = receive(stream, Verb::Hello, peer, received).await?;
    let hello = ClientHello::decode(&hello, peer)?;
    if hello.set != served.set() {
        let what = format!("this server serves @{}, and not @{}", served.set(), hello.set);
        return Err(Error::new(Kind::Conflict, what));
    }
    let identity = match (hello.method, user) {
        (HelloMethod::PeerCredentials, Some(user)) => {
            check_admitted(served, &user)?;
            user
        }
        (HelloMethod::PeerCredentials, None) => {
            return Err(Error::new(Kind::Denied, "the user of a TCP connection is unknown"));
        }
        (HelloMethod::Secret, _) => challenge(served, stream, &hello, peer, received).await?,
    };
    let admitted = served.admission().admit(identity.uid)?;
    let files = served.connect(hello.client, &identity)?;
    let welcomed = send(stream, Verb::Welcome, &served.welcome().encode(), peer).await;
    welcomed.inspect_err(|_| served.disconnect(hello.client, false))?;
    Ok(GreetedClient { client: hello.client, identity, files, admitted })
}

/// Fails unless connections of `user` are accepted.
pub(super) fn check_admitted(served: &ServedNamespace, user: &Identity) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if user.uid == own || user.is_root() || served.options().allow_other {
        return Ok(());
    }
    let what = format!(
        "user {} may not connect: the server of user {own} accepts others only with --allow-other",
        user.uid
    );
    Err(Error::new(Kind::Denied, what))
}

async fn challenge<S: AsyncRead + AsyncWrite + Unpin>(
    served: &ServedNamespace,
    stream: &mut S,
    hello: &ClientHello,
    peer: &str,
    received: &mut Vec<u8>,
) -> Result<Identity> {
    let refused = |what: &str| Error::new(Kind::Denied, format!("{peer}: {what}"));
    let secret = served.options().secret.as_ref();
    let secret = secret.ok_or_else(|| refused("this server has no secret"))?;
    let mut nonce = [0; CONNECTION_NONCE_BYTES];
    Random::from_system().fill(&mut nonce);
    send(stream, Verb::Challenge, &secret.challenge(hello, nonce), peer).await?;
    let answer = receive(stream, Verb::Proof, peer, received).await?;
    let claimed = secret.claimed(hello, &nonce, &answer);
    let claimed = claimed.ok_or_else(|| refused("the client does not know the secret"))?;
    let identity = decode_identity(claimed, peer)?;
    let own = Identity::of_process();
    if own.is_root() || identity.uid == own.uid {
        let is_own = !own.is_root();
        // The server knows its own user's groups better than the client.
        return Ok(if is_own { own } else { identity });
    }
    Err(refused("the client is not of the user whose secret it knows"))
}

/// Receives a frame of the handshake, which is to be `verb`; returns its payload.
async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    verb: Verb,
    peer: &str,
    received: &mut Vec<u8>,
) -> Result<Vec<u8>> {
    loop {
        if let Some((header, payload)) = split_frame(received, GREETING_BYTES_MAX, peer)? {
            let bytes = received[payload.clone()].to_vec();
            received.drain(..payload.end);
            return match header.verb == verb {
                true => Ok(bytes),
                false => {
                    Err(Error::corrupt(peer, 4, format!("{:?} in place of {verb:?}", header.verb)))
                }
            };
        }
        let count = stream.read_buf(received).await;
        if count.map_err(|error| Error::io(error, format!("receive from {peer}")))? == 0 {
            return Err(Error::new(Kind::Closed, format!("{peer} has closed the connection")));
        }
    }
}

/// Tells a client why it is refused, if it still listens.
pub(super) async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, why: &Error) {
    let mut payload = Vec::new();
    put_status::<()>(&mut payload, &Err(Error::new(why.kind(), why.to_string())), usize::MAX);
    let _ = send(stream, Verb::Goodbye, &payload, "a refused client").await;
}

async fn send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    verb: Verb,
    payload: &[u8],
    peer: &str,
) -> Result<()> {
    let mut frame = Vec::new();
    start_frame(&mut frame);
    frame.extend_from_slice(payload);
    finish_frame(&mut frame, 0, &FrameHeader::new(verb, 0));
    let sent = stream.write_all(&frame).await;
    sent.map_err(|error| Error::io(error, format!("send to {peer}")))
}

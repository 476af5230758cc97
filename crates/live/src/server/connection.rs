// SPDX-License-Identifier: Apache-2.0
//! Connection: a task that reads frames, has them carried out, and sends the answers.
//!
//! Answers that await a commit go through a second task, so that reading goes on meanwhile; from
//! the first of them on, all answers of the connection do, in order. The number of waiting answers
//! is bounded: the server stops serving a client that does not read its answers.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_fs::stack::identity::Identity;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::admission::HandshakePeer;
use super::carry_out::ClientSession;
use super::group_commit::LOOK_INTERVAL;
use super::handshake::{GreetedClient, check_admitted, greet, refuse};
use super::peer_user::peer_user;
use super::served_namespace::ServedNamespace;

/// Bytes received at once: those of a batch of changes under one lock.
const RECEIVE_BYTES: usize = 64 << 10;
/// Time that a client has for its handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Time that a client has to take its last answers.
const FINISH_PATIENCE: Duration = Duration::from_secs(10);
/// Silence after which a TCP connection is probed, interval of probes, and their number: a machine
/// that died is noticed within two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// Pause after a connection could not be accepted, because there are too many.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause of a connection while too many wait for other seats.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
/// Batches of answers of one connection that may wait for commits, and their bytes.
const WAITING_MAX: usize = 64;
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Answers, the commit that they await, and their share of the bytes that may wait.
type WaitingAnswers = (Vec<u8>, Option<u64>, OwnedSemaphorePermit);

/// Accepts connections of `listener` on `runtime`.
///
/// # Errors
/// Those of the kernel.
pub(super) fn accept_unix(
    runtime: &Runtime,
    listener: UnixListener,
    served: Arc<ServedNamespace>,
) -> Result<()> {
    let failed = |error| Error::io(error, "listen at a Unix socket");
    listener.set_nonblocking(true).map_err(failed)?;
    let _context = runtime.enter();
    let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
    runtime.spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(user) = peer_user(&stream) else {
                served.metrics().refused.inc();
                continue;
            };
            let is_admitted = check_admitted(&served, &user).is_ok();
            let kind =
                if is_admitted { HandshakePeer::AdmittedUser } else { HandshakePeer::OtherUser };
            match served.admission().permit_handshake(kind) {
                Some(permit) => {
                    let peer = format!("a process of user {}", user.uid);
                    tokio::spawn(serve(served.clone(), stream, (Some(user), peer), permit));
                }
                None => served.metrics().refused.inc(),
            }
        }
    });
    Ok(())
}

/// Accepts connections of `listener` on `runtime`.
///
/// # Errors
/// Those of the kernel.
pub(super) fn accept_tcp(
    runtime: &Runtime,
    listener: TcpListener,
    served: Arc<ServedNamespace>,
) -> Result<()> {
    let failed = |error| Error::io(error, "listen at a TCP port");
    listener.set_nonblocking(true).map_err(failed)?;
    let _context = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    runtime.spawn(async move {
        loop {
            let Ok((stream, address)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Some(permit) = served.admission().permit_handshake(HandshakePeer::Machine) else {
                served.metrics().refused.inc();
                continue;
            };
            // Answers are written whole.
            let _ = stream.set_nodelay(true);
            keep_alive(&stream);
            tokio::spawn(serve(served.clone(), stream, (None, address.to_string()), permit));
        }
    });
    Ok(())
}

/// Makes the kernel end a connection whose other machine has died. Failures are ignored: the
/// connection then only lasts longer.
fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES);
}

/// Serves one connection to its end.
async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    served: Arc<ServedNamespace>,
    mut stream: S,
    (user, peer): (Option<Identity>, String),
    handshake: OwnedSemaphorePermit,
) {
    let mut received = Vec::with_capacity(RECEIVE_BYTES);
    let greeting = greet(&served, &mut stream, user, &peer, &mut received);
    let greeted = match tokio::time::timeout(HANDSHAKE_PATIENCE, greeting).await {
        Ok(Ok(greeted)) => greeted,
        refused => {
            served.metrics().refused.inc();
            if let Ok(Err(why)) = refused {
                refuse(&mut stream, &why).await;
            }
            return;
        }
    };
    served.metrics().connections.inc();
    drop(handshake);
    let GreetedClient { client, identity, files, admitted: _admitted } = greeted;
    let mut session = ClientSession::new(&served, identity, (client, files), peer);
    let (reader, writer) = tokio::io::split(stream);
    let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
    let answers =
        AnswerWriter { served: served.clone(), writer: Some(writer), waiting: None, room };
    let mut connected = ConnectedClient { served: &served, client, is_leaving: false };
    let ended = converse(&served, &mut session, reader, answers, received).await;
    connected.is_leaving = matches!(ended, Ok(true));
}

/// A client while it is connected; disconnects it when dropped.
struct ConnectedClient<'a> {
    served: &'a ServedNamespace,
    client: u64,
    is_leaving: bool,
}

impl Drop for ConnectedClient<'_> {
    fn drop(&mut self) {
        self.served.disconnect(self.client, self.is_leaving);
    }
}

/// Reads and answers until the client ends. Returns true if it will not come back.
async fn converse<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    served: &ServedNamespace,
    session: &mut ClientSession<'_>,
    mut reader: ReadHalf<S>,
    mut answers: AnswerWriter<S>,
    mut received: Vec<u8>,
) -> Result<bool> {
    let is_far = served.session().namespace().is_far();
    loop {
        while !received.is_empty() {
            while !served.commit().has_lease() {
                // A check of the set may renew the lease although the commit waits for free space.
                let commit = served.commit().wait(served.commit().demand());
                if let Ok(committed) = tokio::time::timeout(LOOK_INTERVAL, commit).await {
                    committed?;
                }
            }
            let mut out = Vec::new();
            let began_ns = served.clock().monotonic_ns();
            let outcome = match is_far {
                // A request to a far store must not hold up other connections.
                true => tokio::task::block_in_place(|| session.carry_out(&received, &mut out)),
                false => session.carry_out(&received, &mut out),
            };
            if outcome.as_ref().is_ok_and(|outcome| outcome.consumed > 0) {
                let lasted_ns = served.clock().monotonic_ns().saturating_sub(began_ns);
                served.metrics().batches.observe(lasted_ns as f64 / 1e9);
            }
            // Requests carried out before a failure get their answers.
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    answers.send(out, true).await?;
                    answers.finish().await;
                    return Err(error);
                }
            };
            let sent = answers.send(out, outcome.awaits_commit).await;
            if outcome.is_goodbye {
                // A client that leaves may not wait for the answer.
                if sent.is_ok() {
                    answers.finish().await;
                }
                return Ok(true);
            }
            sent?;
            received.drain(..outcome.consumed);
            if outcome.is_frozen || outcome.is_crowded {
                tokio::select! {
                    () = wait_turn(served, outcome.is_frozen) => continue,
                    () = served.commit().failed() => return Ok(false),
                }
            }
            if outcome.consumed == 0 {
                break;
            }
        }
        received.reserve(RECEIVE_BYTES);
        tokio::select! {
            biased;
            count = reader.read_buf(&mut received) => match count {
                Ok(0) | Err(_) => return Ok(false),
                Ok(_) => {}
            },
            // The client repeats its unanswered requests to the next server.
            () = served.commit().failed() => return Ok(false),
        }
    }
}

/// Returns once a change that had to wait may be tried again.
async fn wait_turn(served: &ServedNamespace, is_frozen: bool) {
    match is_frozen {
        true => served.freeze().thawed(served.clock()).await,
        false => tokio::time::sleep(CROWDED_PAUSE).await,
    }
}

/// Sends answers, those that await a commit only after it.
struct AnswerWriter<S> {
    served: Arc<ServedNamespace>,
    /// The stream, until answers go through the task.
    writer: Option<WriteHalf<S>>,
    /// The task and its queue.
    waiting: Option<(mpsc::Sender<WaitingAnswers>, JoinHandle<()>)>,
    /// Bytes that may wait.
    room: Arc<Semaphore>,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> AnswerWriter<S> {
    /// Sends `answers`, or has them sent after a commit of everything done so far.
    async fn send(&mut self, answers: Vec<u8>, awaits_commit: bool) -> Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        if let Some(writer) = self.writer.as_mut().filter(|_| !awaits_commit) {
            return writer.write_all(&answers).await.map_err(|_| ended());
        }
        let commit = awaits_commit.then(|| self.served.commit().demand());
        let (queue, _) = self.waiting.get_or_insert_with(|| {
            let writer = self.writer.take().expect("here until the task has it");
            let (sender, receiver) = mpsc::channel(WAITING_MAX);
            (sender, tokio::spawn(send_in_order(self.served.clone(), writer, receiver)))
        });
        let bytes = u32::try_from(answers.len().min(WAITING_BYTES_MAX)).expect("few");
        let share = self.room.clone().acquire_many_owned(bytes).await;
        let share = share.expect("the semaphore is never closed");
        queue.send((answers, commit, share)).await.map_err(|_| ended())
    }

    /// Returns once all answers are sent, or the client does not take them.
    async fn finish(mut self) {
        if let Some((queue, mut task)) = self.waiting.take() {
            drop(queue);
            if tokio::time::timeout(FINISH_PATIENCE, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

impl<S> Drop for AnswerWriter<S> {
    /// Gives up answers that are not sent: the client of a connection that ends asks again.
    fn drop(&mut self) {
        if let Some((_, task)) = &self.waiting {
            task.abort();
        }
    }
}

async fn send_in_order<S: AsyncRead + AsyncWrite + Unpin>(
    served: Arc<ServedNamespace>,
    mut writer: WriteHalf<S>,
    mut queue: mpsc::Receiver<WaitingAnswers>,
) {
    while let Some((answers, commit, _share)) = queue.recv().await {
        if let Some(commit) = commit
            && served.commit().wait(commit).await.is_err()
        {
            // The client repeats its requests to the next server.
            return;
        }
        if writer.write_all(&answers).await.is_err() {
            return;
        }
    }
}

fn ended() -> Error {
    Error::new(Kind::Closed, "the client has closed the connection")
}

// SPDX-License-Identifier: Apache-2.0
//! Server: answers the kernel through rings where possible, else through threads.
//!
//! Rings can fail after the kernel has agreed to them, for example for lack of memory. The kernel
//! then holds back every request of the mount, unless it was the one that refused. Such a mount is
//! given up, and the file system is mounted again without rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use esker_base::{Error, Kind, Result};
use esker_fuse_ring::{Answerer, RingOptions, RingRefusal, Rings};
use fuser::{Filesystem, Session};

use crate::driver::{FuseDriver, REQUEST_BYTES_MAX};
use crate::mount_state::MountState;
use crate::ring_driver::RingDriver;

/// The requested transport of the kernel's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Rings where possible, else threads.
    Auto,
    /// Rings; without them the mount fails.
    Uring,
    /// Threads that read `/dev/fuse`.
    #[default]
    Threads,
}

/// The transport of a mount's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    /// Rings, and the number of threads that serve them.
    Uring(usize),
    /// Threads; the reason for which there are no rings, if they were requested.
    Threads(Option<String>),
}

/// A mounted file system, and the threads that will answer the kernel.
pub(crate) struct Server {
    session: Session<FuseDriver>,
    choice: TransportChoice,
    rings: Option<RingServer>,
}

/// Rings in use by the kernel.
struct RingServer {
    rings: Rings,
    device: Arc<OwnedFd>,
    answerer: Arc<dyn Answerer>,
}

impl Server {
    /// Mounts `state` by `mount`, once more if rings fail; the pair is the requested transport and
    /// the number of threads that answer or help. Requests through rings are answered at once,
    /// others once [`Server::answer_kernel`] runs.
    ///
    /// # Errors
    /// Those of `mount`, and `Unsupported` if rings are requested and there are none.
    pub(crate) fn new(
        state: &Arc<MountState>,
        (transport, threads): (Transport, usize),
        mount: impl Fn(FuseDriver) -> Result<Session<FuseDriver>>,
    ) -> Result<Self> {
        let options = RingOptions { payload_bytes: REQUEST_BYTES_MAX as usize, helpers: threads };
        let rings = match transport {
            Transport::Threads => None,
            Transport::Auto | Transport::Uring => Some(Rings::prepare(options)),
        };
        if let (Transport::Uring, Some(Err(refusal))) = (transport, &rings) {
            return Err(must_have_rings(refusal));
        }
        let mount = |wants_rings| {
            state.wants_rings.store(wants_rings, Ordering::Relaxed);
            let session = mount(FuseDriver(state.clone()))?;
            *state.notifier.lock() = Some(session.notifier());
            Ok(session)
        };
        let reason = match rings {
            None => None,
            Some(Err(RingRefusal(reason))) => Some(reason),
            Some(Ok(rings)) => {
                let session = mount(true)?;
                match start(state, &session, rings) {
                    Ok(rings) => {
                        let choice = TransportChoice::Uring(rings.rings.count());
                        return Ok(Self { session, choice, rings: Some(rings) });
                    }
                    Err(refusal) if transport == Transport::Uring => {
                        return Err(must_have_rings(&refusal));
                    }
                    // Dropping the session unmounts it.
                    Err(RingRefusal(reason)) => Some(reason),
                }
            }
        };
        Ok(Self { session: mount(false)?, choice: TransportChoice::Threads(reason), rings: None })
    }

    pub(crate) fn choice(&self) -> &TransportChoice {
        &self.choice
    }

    /// Answers the kernel until the mount is gone or a thread of a ring has failed, sends the
    /// outcome to `ended`, and never returns, for the same reason as [`answer_by_threads`].
    pub(crate) fn answer_kernel(self, ended: &Sender<io::Result<()>>) {
        let Self { session, rings, .. } = self;
        if let Some(RingServer { rings, device, answerer }) = rings {
            let _ = ended.send(rings.serve(device, answerer));
            park(&session);
        }
        answer_by_threads(session, ended);
    }
}

/// Answers the kernel by threads until the mount is gone, sends the outcome to `ended`, and never
/// returns unless no thread could be started: dropping the session would unmount its directory once
/// more, and with it the file system beneath.
pub(crate) fn answer_by_threads<F: Filesystem + Send + Sync + 'static>(
    session: Session<F>,
    ended: &Sender<io::Result<()>>,
) {
    match session.spawn() {
        Ok(background) => {
            let ran = background.guard.join();
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            let _ = ended.send(ran.unwrap_or_else(panicked));
            // The rest of `background`, which unmounts when it is dropped, stays here.
            park(&())
        }
        Err(error) => drop(ended.send(Err(error))),
    }
}

/// Keeps `_kept` until the process ends.
fn park<T>(_kept: &T) -> ! {
    loop {
        std::thread::park();
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }
}

/// Makes the kernel use `rings`, if it agreed to in the handshake.
fn start(
    state: &Arc<MountState>,
    session: &Session<FuseDriver>,
    rings: Rings,
) -> std::result::Result<RingServer, RingRefusal> {
    if !state.wants_rings.load(Ordering::Relaxed) {
        return Err(RingRefusal("the kernel does not offer it for this mount".into()));
    }
    let device = session.as_fd().try_clone_to_owned();
    let device =
        Arc::new(device.map_err(|error| RingRefusal(format!("open the device again: {error}")))?);
    let driver = RingDriver { state: state.clone(), device: device.clone() };
    let answerer: Arc<dyn Answerer> = Arc::new(driver);
    rings.start(&device, &answerer)?;
    Ok(RingServer { rings, device, answerer })
}

fn must_have_rings(RingRefusal(reason): &RingRefusal) -> Error {
    let context = format!(
        "mount with `--transport uring`: {reason}; `--transport auto` takes threads where there are no \
         rings"
    );
    Error::new(Kind::Unsupported, context)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, RawFd};
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use esker_base::store::MemoryStore;
    use fuser::Config;
    use rustix::mount::UnmountFlags;

    use super::*;
    use crate::test_state::state_of_session;

    fn state() -> Arc<MountState> {
        state_of_session(Arc::new(MemoryStore::new())).0
    }

    /// Replaces all rings of this process by `/dev/null`, so that the next call to each fails.
    fn break_rings() {
        let null = std::fs::File::open("/dev/null").expect("it is everywhere");
        for entry in std::fs::read_dir("/proc/self/fd").expect("descriptors") {
            let path = entry.expect("an entry").path();
            if std::fs::read_link(&path).is_ok_and(|link| link.ends_with("anon_inode:[io_uring]")) {
                let name = path.file_name().and_then(|name| name.to_str()).expect("a number");
                let number: RawFd = name.parse().expect("a number");
                // SAFETY: the descriptor stays with the ring's owner, as this value is not dropped.
                let mut ring = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
                rustix::io::dup2(&null, &mut ring).expect("dup2");
            }
        }
    }

    /// Symptom: a mount with `--transport auto` answered no request if rings failed after the
    /// handshake for a reason other than the kernel's refusal. Cause: the kernel holds requests
    /// back until all queues have slots. The file system is now mounted again without rings.
    #[test]
    fn auto_mounts_again_without_rings_that_fail_after_the_handshake() {
        let is_root = rustix::process::geteuid().is_root();
        let options = RingOptions { payload_bytes: REQUEST_BYTES_MAX as usize, helpers: 1 };
        if !crate::is_supported() || !is_root || Rings::prepare(options).is_err() {
            println!("skipped: no mounts or no rings here");
            return;
        }
        let at = tempfile::tempdir().expect("a directory");
        let mounts = AtomicUsize::new(0);
        let server = Server::new(&state(), (Transport::Auto, 2), |driver| {
            mounts.fetch_add(1, Ordering::Relaxed);
            let session = Session::new(driver, at.path(), &Config::default());
            break_rings();
            session.map_err(|error| Error::io(error, "mount"))
        });
        let server = server.expect("threads need no rings");
        assert!(
            matches!(server.choice(), TransportChoice::Threads(Some(_))),
            "{:?}",
            server.choice()
        );
        assert_eq!(mounts.into_inner(), 2);
        let (ends, ended) = channel();
        drop(std::thread::spawn(move || server.answer_kernel(&ends)));
        let (answers, answer) = channel();
        let file = at.path().join("file");
        drop(std::thread::spawn(move || answers.send(std::fs::write(file, "text"))));
        let written = answer.recv_timeout(Duration::from_secs(60));
        let flags = if written.is_ok() { UnmountFlags::empty() } else { UnmountFlags::FORCE };
        rustix::mount::unmount(at.path(), flags).expect("nobody uses it");
        written.expect("requests are answered").expect("write");
        ended.recv().expect("an outcome").expect("it ends by the unmount");
    }
}

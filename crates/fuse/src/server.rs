// SPDX-License-Identifier: Apache-2.0
//! Server: what answers the kernel, by the transport that can be had.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use esker_base::{Error, Kind, Result};
use esker_fuse_ring::{Answerer, RingOptions, RingRefusal, Rings};
use fuser::Session;

use crate::driver::{FuseDriver, REQUEST_BYTES_MAX};
use crate::front::MountFront;
use crate::ring_driver::RingDriver;

/// How requests of the kernel get to a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By rings where they can be had, else by threads.
    Auto,
    /// By rings, or not at all.
    Uring,
    /// By threads that read `/dev/fuse`.
    #[default]
    Threads,
}

/// How requests get to a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    /// By rings, which so many threads serve.
    Uring(usize),
    /// By threads; why there are no rings, unless nobody asked for them.
    Threads(Option<String>),
}

/// A file system that is mounted, and what will answer the kernel.
pub(crate) struct Server {
    session: Session<FuseDriver>,
    choice: TransportChoice,
    rings: Option<RingServer>,
}

/// Rings that the kernel uses.
struct RingServer {
    rings: Rings,
    device: Arc<OwnedFd>,
    answerer: Arc<dyn Answerer>,
}

impl Server {
    /// Mounts `front` by `mount`; `wanted` is the transport, and how many threads answer or help.
    /// Requests that come by rings are answered at once, others once [`Server::answer_kernel`] runs.
    ///
    /// # Errors
    /// Those of `mount`, and `Unsupported` if there must be rings and there are none.
    pub(crate) fn new(
        front: &Arc<MountFront>,
        (transport, threads): (Transport, usize),
        mount: impl FnOnce(FuseDriver) -> Result<Session<FuseDriver>>,
    ) -> Result<Self> {
        let options = RingOptions { payload_bytes: REQUEST_BYTES_MAX as usize, helpers: threads };
        let rings = match transport {
            Transport::Threads => None,
            Transport::Auto | Transport::Uring => Some(Rings::prepare(options)),
        };
        if let (Transport::Uring, Some(Err(refusal))) = (transport, &rings) {
            return Err(must_have_rings(refusal));
        }
        front.wants_rings.store(matches!(rings, Some(Ok(_))), Ordering::Relaxed);
        let session = mount(FuseDriver(front.clone()))?;
        let is_first = front.notifier.set(session.notifier()).is_ok();
        assert!(is_first, "a front is mounted once");
        let started = rings.map(|rings| rings.and_then(|rings| start(front, &session, rings)));
        let (choice, rings) = match started {
            None => (TransportChoice::Threads(None), None),
            Some(Ok(started)) => (TransportChoice::Uring(started.rings.count()), Some(started)),
            Some(Err(refusal)) if transport == Transport::Uring => {
                return Err(must_have_rings(&refusal));
            }
            Some(Err(RingRefusal(reason))) => (TransportChoice::Threads(Some(reason)), None),
        };
        Ok(Self { session, choice, rings })
    }

    pub(crate) fn choice(&self) -> &TransportChoice {
        &self.choice
    }

    /// Answers the kernel until the mount is gone, says so on `ended`, and never returns: dropping the
    /// session would unmount its directory once more, and with it the file system beneath.
    pub(crate) fn answer_kernel(self, ended: &Sender<io::Result<()>>) {
        let Self { session, rings, .. } = self;
        if let Some(RingServer { rings, device, answerer }) = rings {
            let _ = ended.send(rings.serve(&device, &answerer));
            park(&session);
        }
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
}

/// Keeps `_kept` for ever.
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

/// Lets the kernel use `rings`, if it said that it would.
fn start(
    front: &Arc<MountFront>,
    session: &Session<FuseDriver>,
    rings: Rings,
) -> std::result::Result<RingServer, RingRefusal> {
    if !front.wants_rings.load(Ordering::Relaxed) {
        return Err(RingRefusal("the kernel does not offer it for this mount".into()));
    }
    let device = session.as_fd().try_clone_to_owned();
    let device =
        Arc::new(device.map_err(|error| RingRefusal(format!("open the device again: {error}")))?);
    let driver = RingDriver { front: front.clone(), device: device.clone() };
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

// SPDX-License-Identifier: Apache-2.0
//! Rings: the rings of all processors, and the threads that serve them.
//!
//! Each processor of the kernel has a queue of requests, and each queue has slots: buffers for one
//! request and its answer (`slot.rs`). A thread for each processor, pinned to it, has a ring by
//! which it gives the slots of its queue to the kernel; the kernel fills them with requests of
//! programs on that processor, wakes the thread, and takes the answers (`queue.rs`). Requests that
//! may take long go to helpers, threads that are not pinned (`helper_threads.rs`). The threads also
//! serve the queues of processors that are absent or on which this process may not run: the kernel
//! uses rings only once every queue has slots.
//!
//! Rings are made before the file system is mounted, so that a refusal is known by then. Once the
//! kernel has agreed to rings, it holds back all requests until every queue has slots, or until it
//! refuses one itself: after any other failure the caller must unmount, and mount without rings.
//! Source: Documentation/filesystems/fuse/fuse-io-uring.rst, fs/fuse/dev_uring.c of Linux 6.18.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::device::read_device;
use crate::helper_threads::Helpers;
use crate::processors::Processors;
use crate::queue::{QueueSetup, QueueThread};
use crate::{Answerer, caught, panicked};

/// The kernel's switch. The file is absent if the kernel does not support rings.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Slots of a queue: requests of one processor in flight at a time.
const SLOTS_PER_QUEUE: usize = 16;
/// Slots of all queues together, for any number of processors.
const SLOTS_MAX: usize = 1024;

/// Settings of rings.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Maximum bytes of a request besides its header, as negotiated with the kernel.
    pub payload_bytes: usize,
    /// Threads for requests that may take long; at least 1.
    pub helpers: usize,
}

/// The reason for which there are no rings; it follows the word "since" or a colon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingRefusal(pub String);

/// Rings, and the threads that will serve them.
#[derive(Debug)]
pub struct Rings {
    threads: Vec<RingThread>,
    /// The outcome of each thread that has served its ring.
    outcomes: Receiver<io::Result<()>>,
    ends: Sender<io::Result<()>>,
    helpers: Arc<Helpers>,
    options: RingOptions,
}

/// A thread with its ring.
#[derive(Debug)]
struct RingThread {
    start: Sender<(Arc<OwnedFd>, Arc<dyn Answerer>)>,
    /// Outcome of making the ring, and then of giving its slots to the kernel.
    ready: Receiver<io::Result<()>>,
}

impl Rings {
    /// Makes rings and their threads.
    ///
    /// # Errors
    /// The reason for which this machine has none.
    pub fn prepare(options: RingOptions) -> Result<Self, RingRefusal> {
        check_switch(std::fs::read_to_string(SWITCH).ok().as_deref())?;
        let refused = |what: &str, error: &io::Error| RingRefusal(format!("{what}: {error}"));
        let processors =
            Processors::read().map_err(|error| refused("processors cannot be listed", &error))?;
        let slots = (SLOTS_MAX / processors.count()).clamp(1, SLOTS_PER_QUEUE);
        let helpers = Helpers::start(options.helpers.max(1))
            .map_err(|error| refused("threads cannot be started", &error))?;
        let (ends, outcomes) = channel();
        let mut rings = Self { threads: Vec::new(), outcomes, ends, helpers, options };
        for (processor, queues) in processors.assignments() {
            let helpers = rings.helpers.clone();
            let payload_bytes = options.payload_bytes;
            let setup = QueueSetup { processor, queues, slots, payload_bytes, helpers };
            let thread = RingThread::start(setup, rings.ends.clone());
            rings
                .threads
                .push(thread.map_err(|error| refused("threads cannot be started", &error))?);
        }
        for thread in &rings.threads {
            thread.wait().map_err(|error| RingRefusal(reason(&error)))?;
        }
        Ok(rings)
    }

    /// Gives all slots to the kernel, which uses the rings for the mount behind `device` from then
    /// on. The handshake must have agreed on `FUSE_OVER_IO_URING`.
    ///
    /// # Errors
    /// The reason for which the kernel does not have all slots. It may hold back the requests of
    /// the mount then, and the caller must unmount, upon which the threads end.
    pub fn start(
        &self,
        device: &Arc<OwnedFd>,
        answerer: &Arc<dyn Answerer>,
    ) -> Result<(), RingRefusal> {
        for thread in &self.threads {
            // `wait` reports a thread that died.
            let _ = thread.start.send((device.clone(), answerer.clone()));
        }
        let taken: Vec<_> = self.threads.iter().map(RingThread::wait).collect();
        let taken = taken.into_iter().collect::<io::Result<()>>();
        taken.map_err(|error| RingRefusal(format!("the kernel does not have its slots: {error}")))
    }

    /// Reads the messages that rings do not carry, until the mount behind `device` is gone and all
    /// threads have ended.
    ///
    /// # Errors
    /// The first error of a thread, at once: its processor is not served any more, so the caller
    /// must abort the connection.
    pub fn serve(self, device: Arc<OwnedFd>, answerer: Arc<dyn Answerer>) -> io::Result<()> {
        let (ends, payload_bytes) = (self.ends.clone(), self.options.payload_bytes);
        let reader = std::thread::Builder::new().name("fuse-forget".into());
        reader.spawn(move || {
            let ended = caught(|| read_device(&device, &answerer, payload_bytes));
            let _ = ends.send(ended.unwrap_or_else(|| Err(panicked())));
        })?;
        for _ in 0..=self.threads.len() {
            self.outcomes.recv().unwrap_or_else(|_| Err(panicked()))?;
        }
        if self.helpers.has_panicked() { Err(panicked()) } else { Ok(()) }
    }

    /// Number of threads that serve rings.
    #[must_use]
    pub fn count(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.helpers.end();
    }
}

impl RingThread {
    /// Starts the thread, which sends its outcome to `ends` once it has served the ring.
    fn start(setup: QueueSetup, ends: Sender<io::Result<()>>) -> io::Result<Self> {
        let (readiness, ready) = channel();
        let (start, started) = channel::<(Arc<OwnedFd>, Arc<dyn Answerer>)>();
        let name = format!("fuse-ring-{}", setup.processor);
        std::thread::Builder::new().name(name).spawn(move || {
            let mut thread = match QueueThread::new(setup) {
                Ok(thread) => thread,
                Err(error) => {
                    let _ = readiness.send(Err(error));
                    return;
                }
            };
            let _ = readiness.send(Ok(()));
            let Ok((device, answerer)) = started.recv() else { return };
            let registered = thread.register(&device);
            let is_registered = registered.is_ok();
            let _ = readiness.send(registered);
            drop(readiness);
            if is_registered {
                let served = caught(|| thread.serve(&answerer));
                // The ring is closed before the error is known, so that no program waits for it.
                drop(thread);
                let _ = ends.send(served.unwrap_or_else(|| Err(panicked())));
            }
        })?;
        Ok(Self { start, ready })
    }

    fn wait(&self) -> io::Result<()> {
        self.ready.recv().unwrap_or_else(|_| Err(panicked()))
    }
}

/// Fails unless `content`, that of [`SWITCH`] if the file exists, says that the kernel accepts
/// rings.
fn check_switch(content: Option<&str>) -> Result<(), RingRefusal> {
    match content.map(str::trim) {
        Some("Y") => Ok(()),
        Some(_) => Err(RingRefusal(format!(
            "FUSE over io_uring is switched off: as root, `echo Y > {SWITCH}` before mounting"
        ))),
        None => Err(RingRefusal(
            "this kernel has no FUSE over io_uring, which Linux has from 6.14 on".into(),
        )),
    }
}

/// The reason for which a ring could not be made, and what to do.
fn reason(error: &io::Error) -> String {
    let hint = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {
            ": see `sysctl kernel.io_uring_disabled`, and what the container's seccomp profile allows"
        }
        Some(rustix::io::Errno::NOSYS) => {
            ": this kernel, or the container's seccomp profile, has none"
        }
        Some(rustix::io::Errno::NOMEM) => ": see `ulimit -l` and `ulimit -v`",
        _ => "",
    };
    format!("io_uring is refused ({error}){hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        assert_eq!(check_switch(Some("Y\n")), Ok(()));
        let RingRefusal(off) = check_switch(Some("N\n")).expect_err("off");
        assert!(off.contains("echo Y >") && off.contains(SWITCH), "{off}");
        let RingRefusal(old) = check_switch(None).expect_err("old");
        assert!(old.contains("6.14"), "{old}");
        for (errno, hint) in [(1, "io_uring_disabled"), (38, "seccomp"), (12, "ulimit")] {
            let text = reason(&io::Error::from_raw_os_error(errno));
            assert!(text.contains(hint), "{text}");
        }
    }
}

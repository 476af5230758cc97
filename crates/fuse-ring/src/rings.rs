// SPDX-License-Identifier: Apache-2.0
//! FUSE over io_uring: rings for all processors, and the threads that serve them.
//!
//! Each processor of the kernel has a queue of requests, and each queue has slots: buffers for one
//! request and its answer (`slot.rs`). A thread for each processor, pinned to it, has a ring by which it
//! gives the slots of its queue to the kernel; the kernel fills them with requests of programs on that
//! processor, wakes the thread, and takes the answers (`queue.rs`). Requests that may wait for long
//! go to helpers, threads that are not pinned (`helper_threads.rs`). Queues of processors on which this
//! process may not run, or which are not there, are served by the other threads: the kernel uses rings
//! only once every queue has slots.
//!
//! Rings are made before the file system is mounted, so that whatever forbids them is known by then.
//! Source: Documentation/filesystems/fuse/fuse-io-uring.rst, fs/fuse/dev_uring.c of Linux 6.18.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::Answerer;
use crate::device::read_device;
use crate::helper_threads::Helpers;
use crate::processors::Processors;
use crate::queue::{QueueSetup, QueueThread};

/// The kernel's switch; the file is not there if the kernel knows nothing of rings.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Slots of a queue: requests of one processor under way at a time.
const SLOTS_PER_QUEUE: usize = 16;
/// Slots of all queues together, however many processors there may be.
const SLOTS_MAX: usize = 1024;

/// How rings are made.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Bytes of one request besides its header: the most that the kernel was told.
    pub payload_bytes: usize,
    /// Threads for requests that wait; at least 1.
    pub helpers: usize,
}

/// Why there are no rings, as a sentence that goes on with "since".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingRefusal(pub String);

/// Rings, and the threads that will serve them.
#[derive(Debug)]
pub struct Rings {
    threads: Vec<RingThread>,
    helpers: Arc<Helpers>,
    options: RingOptions,
}

/// A thread with its ring.
#[derive(Debug)]
struct RingThread {
    start: Sender<(Arc<OwnedFd>, Arc<dyn Answerer>)>,
    /// Says whether the ring could be made, and then whether the kernel took its slots.
    ready: Receiver<io::Result<()>>,
    handle: JoinHandle<io::Result<()>>,
}

impl Rings {
    /// Makes rings and their threads.
    ///
    /// # Errors
    /// What this machine lacks or forbids.
    pub fn prepare(options: RingOptions) -> Result<Self, RingRefusal> {
        check_switch(std::fs::read_to_string(SWITCH).ok().as_deref())?;
        let refused = |what: &str, error: &io::Error| RingRefusal(format!("{what}: {error}"));
        let processors =
            Processors::read().map_err(|error| refused("processors cannot be listed", &error))?;
        let slots = (SLOTS_MAX / processors.count()).clamp(1, SLOTS_PER_QUEUE);
        let helpers = Helpers::start(options.helpers.max(1))
            .map_err(|error| refused("threads cannot be started", &error))?;
        let mut rings = Self { threads: Vec::new(), helpers, options };
        for (processor, queues) in processors.assignments() {
            let helpers = rings.helpers.clone();
            let payload_bytes = options.payload_bytes;
            let setup = QueueSetup { processor, queues, slots, payload_bytes, helpers };
            let thread = RingThread::start(setup);
            rings
                .threads
                .push(thread.map_err(|error| refused("threads cannot be started", &error))?);
        }
        for thread in &rings.threads {
            thread.wait().map_err(|error| RingRefusal(reason(&error)))?;
        }
        Ok(rings)
    }

    /// Gives all slots to the kernel, which uses the rings for the mount behind `device` from then on.
    /// The kernel must have been asked for `FUSE_OVER_IO_URING`, and have said yes.
    ///
    /// # Errors
    /// Why the kernel did not take them: requests then come by `/dev/fuse`.
    pub fn start(
        &self,
        device: &Arc<OwnedFd>,
        answerer: &Arc<dyn Answerer>,
    ) -> Result<(), RingRefusal> {
        for thread in &self.threads {
            // A thread that died says so below.
            let _ = thread.start.send((device.clone(), answerer.clone()));
        }
        let taken: Vec<_> = self.threads.iter().map(RingThread::wait).collect();
        let taken = taken.into_iter().collect::<io::Result<()>>();
        taken.map_err(|error| RingRefusal(format!("the kernel does not take its slots: {error}")))
    }

    /// Reads what rings do not carry until the mount behind `device` is gone, and waits for the threads.
    ///
    /// # Errors
    /// Of the first thread that failed.
    pub fn serve(mut self, device: &OwnedFd, answerer: &Arc<dyn Answerer>) -> io::Result<()> {
        let mut ended = read_device(device, answerer, self.options.payload_bytes);
        for RingThread { handle, .. } in std::mem::take(&mut self.threads) {
            let of_thread = handle.join();
            let of_thread =
                of_thread.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            ended = ended.and(of_thread);
        }
        if self.helpers.has_panicked() {
            return ended.and(Err(io::Error::other("a thread panicked")));
        }
        ended
    }

    /// How many threads serve rings.
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
    fn start(setup: QueueSetup) -> io::Result<Self> {
        let (says_ready, ready) = channel();
        let (start, started) = channel::<(Arc<OwnedFd>, Arc<dyn Answerer>)>();
        let name = format!("fuse-ring-{}", setup.processor);
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            let mut thread = match QueueThread::new(setup) {
                Ok(thread) => thread,
                Err(error) => {
                    let _ = says_ready.send(Err(error));
                    return Ok(());
                }
            };
            let _ = says_ready.send(Ok(()));
            let Ok((device, answerer)) = started.recv() else { return Ok(()) };
            let registered = thread.register(&device);
            let is_registered = registered.is_ok();
            let _ = says_ready.send(registered);
            // Slots that the kernel took stay until the mount ends.
            drop(says_ready);
            if is_registered { thread.serve(&answerer) } else { Ok(()) }
        })?;
        Ok(Self { start, ready, handle })
    }

    fn wait(&self) -> io::Result<()> {
        self.ready.recv().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

/// Whether the kernel would take rings, by what is in [`SWITCH`], if that is there.
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

/// Why a ring could not be made.
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
    fn what_forbids_rings_is_said_with_what_to_do() {
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

// SPDX-License-Identifier: Apache-2.0
//! Mount run: the life of a mount, from its first request to its last, whatever it shows.
//!
//! A mount ends by `umount`, `fusermount3 -u`, a request to end it (`control`) or a signal. The
//! first three fail while the mount is in use; a signal detaches it anyway. After the end all files
//! are closed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use esker_base::{Error, Kind, Result};
use fuser::Errno;
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::{ControlClient, ControlListener, ControlRequest};
use crate::mounted_directory::MountedDirectory;

/// The content of a mount.
pub(crate) trait MountContent: Send + Sync + 'static {
    /// Publishes the current state as `name`.
    fn publish(&self, name: &str, directory: &MountedDirectory) -> Result<Value>;

    /// Waits until what programs have written before is here: the kernel begins to send it when it is
    /// told to sync a file system of a program like this, and does not wait for it.
    fn receive_pages(&self) {}

    /// Merges tables and frees overwritten data.
    fn compact(&self) -> Result<Value>;

    /// Fails if another process writes what this mount wrote.
    fn check_writer(&self) -> Result<()>;

    /// The number of requests by kind, if the mount counts them.
    fn requests(&self) -> Option<Value>;

    /// Writes what would be lost by an unmount; fails if the mount is to go on.
    fn write_before_end(&self, directory: &MountedDirectory) -> Result<()>;

    /// Works in the background until the sender of `end` is dropped.
    fn work_until(&self, end: &Receiver<()>);

    /// Asks the kernel, through `device`, to forget files whenever it knows more than `known_max`,
    /// until the sender of `end` is dropped.
    fn prune_until(&self, device: &OwnedFd, known_max: usize, end: &Receiver<()>);

    /// Closes all files.
    fn close_all(&self) -> Result<(), Errno>;
}

/// A mount that the threads of this process serve.
pub(crate) struct MountRun<C> {
    shared: Arc<MountShared<C>>,
}

/// State shared by the threads of a mount.
struct MountShared<C> {
    content: Arc<C>,
    directory: MountedDirectory,
    listener: ControlListener,
    /// The client that requested the end and waits until everything is done.
    asker: Mutex<Option<ControlClient>>,
}

/// A mount that has ended. A client that requested the end waits for [`MountEnding::report`].
#[must_use]
pub struct MountEnding {
    asker: Option<ControlClient>,
    /// The outcome of closing all open files.
    pub closed: Result<()>,
    /// The number of requests by kind, if the mount counted them.
    pub requests: Option<Value>,
}

impl MountEnding {
    /// Answers the client that requested the end.
    pub fn report(mut self, how: &Result<Value>) {
        if let Some(asker) = &mut self.asker {
            asker.answer(how);
        }
    }
}

impl<C: MountContent> MountRun<C> {
    /// The mount of `content` at `directory`, to which commands send requests by `listener`.
    pub(crate) fn new(
        content: Arc<C>,
        directory: MountedDirectory,
        listener: ControlListener,
    ) -> Self {
        let asker = Mutex::default();
        Self { shared: Arc::new(MountShared { content, directory, listener, asker }) }
    }

    pub(crate) fn content(&self) -> &Arc<C> {
        &self.shared.content
    }

    /// Runs the mount until it ends. `answer_kernel` serves it in a thread of its own, sends the
    /// outcome to its argument, and keeps what would unmount the directory once more when dropped.
    ///
    /// # Errors
    /// Those that the kernel reports; the content stays as it was.
    pub(crate) fn run(
        self,
        known_files_max: usize,
        answer_kernel: impl FnOnce(&Sender<io::Result<()>>) + Send + 'static,
    ) -> Result<MountEnding> {
        let shared = self.shared;
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|error| Error::io(error, "wait for signals"))?;
        let stop = signals.handle();
        let (ends, end) = std::sync::mpsc::channel();
        let (on_signals, taken) = (shared.clone(), ends.clone());
        // These threads end with the process: no command can send requests to a mount that is gone,
        // and programs with open files in a detached mount are served until then.
        drop(std::thread::spawn(move || on_signals.end_on(signals, &taken)));
        let on_requests = shared.clone();
        drop(std::thread::spawn(move || on_requests.answer_requests()));
        let (ends_work, end_of_mount) = std::sync::mpsc::channel();
        let content = shared.content.clone();
        let work = std::thread::spawn(move || content.work_until(&end_of_mount));
        let (ends_pruning, end_of_mount) = std::sync::mpsc::channel();
        let on_pruning = shared.clone();
        drop(std::thread::spawn(move || {
            let device = &on_pruning.directory.device;
            on_pruning.content.prune_until(device, known_files_max, &end_of_mount);
        }));
        drop(std::thread::spawn(move || answer_kernel(&ends)));
        let ran = end.recv().unwrap_or_else(|_| Err(io::Error::other("the mount's thread died")));
        stop.close();
        drop((ends_work, ends_pruning));
        // A thread that reads a request during the unmount may get ECONNABORTED.
        let is_unmounted = |error: &io::Error| {
            error.raw_os_error() == Some(rustix::io::Errno::CONNABORTED.raw_os_error())
        };
        let ran = ran.or_else(|error| if is_unmounted(&error) { Ok(()) } else { Err(error) });
        if ran.is_err() {
            // Before open files are closed: programs whose requests are no longer answered get
            // errors at once.
            shared.directory.abort();
        }
        // A panicking thread has already reported the panic.
        let _ = work.join();
        let closed = shared.content.close_all().map_err(|errno| {
            let why = io::Error::from_raw_os_error(i32::from(errno));
            Error::new(Kind::DeviceFailed, format!("close what was open: {why}"))
        });
        ran.map_err(|error| Error::io(error, "answer the kernel"))?;
        let requests = shared.content.requests();
        Ok(MountEnding { asker: shared.asker.lock().take(), closed, requests })
    }
}

impl<C: MountContent> MountShared<C> {
    /// Ends the mount at the first signal, even if it is in use.
    fn end_on(&self, mut signals: Signals, ended: &Sender<io::Result<()>>) {
        if signals.forever().next().is_none() {
            return;
        }
        if self.directory.unmount(UnmountFlags::empty()).is_ok() {
            return;
        }
        // The mount is in use: keep the data that programs have written. From the publication on
        // they get errors, and when the process ends they are cut off.
        self.directory.write_pages();
        self.content.receive_pages();
        let _ = self.directory.unmount(UnmountFlags::DETACH);
        let _ = ended.send(Ok(()));
    }

    fn answer_requests(&self) {
        while let Ok((request, mut asker)) = self.listener.next() {
            let content = &self.content;
            let answer = match request {
                ControlRequest::Commit(name) => content.publish(&name, &self.directory),
                ControlRequest::Compact => content.compact(),
                ControlRequest::CheckWriter => {
                    content.check_writer().map(|()| json!({"writes": true}))
                }
                ControlRequest::Statistics => self.statistics(),
                ControlRequest::End => {
                    self.end_for(asker);
                    continue;
                }
            };
            asker.answer(&answer);
        }
    }

    fn statistics(&self) -> Result<Value> {
        let requests = self.content.requests().ok_or_else(|| {
            Error::new(Kind::Invalid, "the mount does not count requests: mount with --statistics")
        })?;
        Ok(json!({"requests": requests}))
    }

    /// Ends the mount for `asker`, who gets an answer once everything is done, or why it goes on.
    fn end_for(&self, mut asker: ControlClient) {
        if let Err(error) = self.content.write_before_end(&self.directory) {
            return asker.answer(&Err(error));
        }
        // Before the end, which may come at once.
        *self.asker.lock() = Some(asker);
        if let Err(error) = self.directory.unmount(UnmountFlags::empty())
            && let Some(mut asker) = self.asker.lock().take()
        {
            asker.answer(&Err(error));
        }
    }
}

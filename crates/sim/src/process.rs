// SPDX-License-Identifier: Apache-2.0
//! Process: the machine's store as one incarnation of an actor sees it.
//!
//! Once it is dead, every request fails with `Closed` and has no effect.
//! Invariant: a request's effect and its fate are one step under the machine's lock.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use esker_base::store::{
    AppendLog, FaultEffect, InPlaceLog, LocalFile, LocalFiles, ObjectInfo, ObjectWriter, Store,
    name,
};
use esker_base::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::disk::SimulatedDisk;
use crate::machine::{ActorId, MachineCore, RequestCaller, RequestFate, SimulatedMachine};

/// One incarnation of an actor: a store that stops working when the process dies.
#[derive(Clone)]
pub struct ActorProcess {
    machine: Arc<SimulatedMachine>,
    caller: RequestCaller,
    planned: Arc<Mutex<Option<PlannedAct>>>,
}

/// An action planned before one of a process's requests.
struct PlannedAct {
    is_wanted: Box<dyn Fn(&str) -> bool + Send>,
    /// Matching requests to skip first.
    skipped: u64,
    act: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for ActorProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("caller", &self.caller).finish_non_exhaustive()
    }
}

fn injected(kind: Kind, what: &str, name: &str) -> Error {
    Error::new(kind, format!("{what} {name}: injected fault"))
}

impl ActorProcess {
    pub(crate) fn new(machine: Arc<SimulatedMachine>, caller: RequestCaller) -> Self {
        Self { machine, caller, planned: Arc::default() }
    }

    /// The process's number; numbers grow from process to process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.caller.process
    }

    /// The actor of which it is an incarnation.
    #[must_use]
    pub fn actor(&self) -> ActorId {
        ActorId(self.caller.actor)
    }

    /// Returns whether it has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.machine.is_dead(self.caller)
    }

    /// Runs `act` right before a request for a name that `is_wanted`, after `skipped` such
    /// requests, as another thread of the process would. The call that makes the request holds its
    /// locks meanwhile.
    pub fn act_before(
        &self,
        is_wanted: impl Fn(&str) -> bool + Send + 'static,
        skipped: u64,
        act: impl FnOnce() + Send + 'static,
    ) {
        let (is_wanted, act) = (Box::new(is_wanted), Box::new(act));
        *self.planned.lock() = Some(PlannedAct { is_wanted, skipped, act });
    }

    /// Cancels the action planned by [`Self::act_before`].
    pub fn cancel_act(&self) {
        *self.planned.lock() = None;
    }

    fn act_if_planned(&self, name: &str) {
        let due = {
            let mut planned = self.planned.lock();
            match planned.as_mut().filter(|planned| (planned.is_wanted)(name)) {
                Some(wanted) if wanted.skipped > 0 => {
                    wanted.skipped -= 1;
                    None
                }
                Some(_) => planned.take(),
                None => None,
            }
        };
        if let Some(due) = due {
            (due.act)();
        }
    }

    /// A request that takes effect completely or not at all.
    fn request<T>(
        &self,
        what: &str,
        name: &str,
        needs_room: bool,
        act: impl FnOnce(&mut SimulatedDisk, u64) -> Result<T>,
    ) -> Result<T> {
        self.act_if_planned(name);
        let (mut core, fate) = self.machine.begin(self.caller, what, name, needs_room);
        let now_ns = self.machine.now_ns();
        let (kind, effect) = match fate {
            RequestFate::Done => return act(&mut core.disk, now_ns),
            RequestFate::Failed { kind, effect } => (kind, effect),
            RequestFate::Dead { effect } => (Kind::Closed, effect),
        };
        let takes_effect = match effect {
            FaultEffect::None => false,
            FaultEffect::Partial => core.below(2) == 0,
            FaultEffect::Full => true,
        };
        if takes_effect {
            // The caller gets the injected fault, whatever the result.
            drop(act(&mut core.disk, now_ns));
        }
        Err(injected(kind, what, name))
    }

    fn read<T>(
        &self,
        what: &str,
        name: &str,
        act: impl FnOnce(&SimulatedDisk) -> Result<T>,
    ) -> Result<T> {
        self.request(what, name, false, |disk, _| act(disk))
    }
}

impl LocalFiles for ActorProcess {
    /// Fails: readers of the simulated disk read by requests.
    fn open(&self, name: &str) -> Result<File> {
        Err(Error::new(Kind::Invalid, format!("{name}: the simulated disk opens no files to read")))
    }

    fn create_log(&self, name: &str) -> Result<InPlaceLog> {
        name::check(name)?;
        let writer = self.caller.process;
        let file = self.request("open in place", name, true, |disk, now_ns| {
            disk.open_in_place(name, writer, now_ns)
        })?;
        Ok((Box::new(SimulatedLog::new(self, name)), LocalFile::new(name, file)))
    }
}

impl Store for ActorProcess {
    fn url(&self) -> String {
        "memory:(simulated)".into()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        name::check(name)?;
        let bytes = Bytes::copy_from_slice(bytes);
        let writer = self.caller.process;
        self.request("put", name, true, |disk, now_ns| disk.put(name, bytes, writer, now_ns))
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        name::check(name)?;
        let (process, name) = (self.clone(), name.to_owned());
        Ok(Box::new(SimulatedWriter { process, name, bytes: Vec::new() }))
    }

    fn size(&self, name: &str) -> Result<u64> {
        name::check(name)?;
        self.read("size", name, |disk| disk.bytes(name).map(|bytes| bytes.len() as u64))
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        name::check(name)?;
        self.read("get", name, |disk| {
            let bytes = disk.bytes(name)?;
            if bytes.len() as u64 > bytes_max {
                return Err(Error::new(Kind::TooLarge, format!("{name}: over {bytes_max} bytes")));
            }
            Ok(Bytes::copy_from_slice(&bytes))
        })
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        name::check(name)?;
        self.read("get range", name, |disk| disk.slice(name, &range))
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        name::check(name)?;
        self.read("get ranges", name, |disk| {
            ranges.iter().map(|range| disk.slice(name, range)).collect()
        })
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        name::check(name)?;
        let writer = self.caller.process;
        self.request("open", name, true, |disk, now_ns| disk.open_log(name, writer, now_ns))?;
        Ok(Box::new(SimulatedLog::new(self, name)))
    }

    fn local_files(&self) -> Option<&dyn LocalFiles> {
        Some(self)
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        name::check(name)?;
        self.request("sync", name, false, |disk, _| {
            disk.bytes(name)?;
            disk.sync(name)
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        name::check_prefix(prefix)?;
        self.read("list", prefix, |disk| disk.list(prefix))
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        name::check_prefix(prefix)?;
        self.read("list names", prefix, |disk| {
            let below = |info: ObjectInfo| {
                info.name[prefix.len()..].split('/').next().unwrap_or_default().to_owned()
            };
            let mut names: Vec<String> = disk.list(prefix)?.into_iter().map(below).collect();
            names.sort_unstable();
            names.dedup();
            Ok(names)
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        name::check(name)?;
        self.request("delete", name, false, |disk, _| {
            disk.delete(name);
            Ok(())
        })
    }
}

struct SimulatedWriter {
    process: ActorProcess,
    name: String,
    bytes: Vec<u8>,
}

impl ObjectWriter for SimulatedWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { process, name, bytes } = *self;
        process.request("finish", &name, true, |disk, now_ns| {
            disk.put(&name, bytes.into(), process.caller.process, now_ns)
        })
    }
}

struct SimulatedLog {
    process: ActorProcess,
    name: String,
    bytes: AtomicU64,
    is_poisoned: AtomicBool,
}

impl SimulatedLog {
    fn new(process: &ActorProcess, name: &str) -> Self {
        Self {
            process: process.clone(),
            name: name.to_owned(),
            bytes: AtomicU64::new(0),
            is_poisoned: AtomicBool::new(false),
        }
    }

    fn poisoned(&self) -> Error {
        Error::new(Kind::Closed, format!("{}: an earlier write or sync failed", self.name))
    }

    /// Appends the part of `bytes` that the request's fate allows; returns its length, and the
    /// error if any.
    fn append_as_fated(
        &self,
        core: &mut MachineCore,
        fate: RequestFate,
        bytes: &[u8],
    ) -> (usize, Option<Kind>) {
        let (effect, kind) = match fate {
            RequestFate::Done => (FaultEffect::Full, None),
            RequestFate::Failed { kind, effect } => (effect, Some(kind)),
            RequestFate::Dead { effect } => (effect, Some(Kind::Closed)),
        };
        let kept = match effect {
            FaultEffect::None => 0,
            FaultEffect::Partial => core.below(bytes.len() as u64 + 1),
            FaultEffect::Full => bytes.len() as u64,
        };
        let kept = usize::try_from(kept).expect("no more than was given");
        core.disk.append(&self.name, &bytes[..kept], self.process.machine.now_ns());
        (kept, kind)
    }
}

impl AppendLog for SimulatedLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        if self.is_poisoned.load(Ordering::SeqCst) {
            return Err(self.poisoned());
        }
        let (machine, caller) = (&self.process.machine, self.process.caller);
        let (mut core, fate) = machine.begin(caller, "append to", &self.name, true);
        let (kept, kind) = self.append_as_fated(&mut core, fate, bytes);
        let offset = self.bytes.fetch_add(kept as u64, Ordering::SeqCst);
        drop(core);
        let Some(kind) = kind else { return Ok(offset) };
        if kind != Kind::NoSpace || kept > 0 {
            self.is_poisoned.store(true, Ordering::SeqCst);
        }
        Err(injected(kind, "append to", &self.name))
    }

    fn sync(&self) -> Result<()> {
        if self.is_poisoned.load(Ordering::SeqCst) {
            return Err(self.poisoned());
        }
        let synced =
            self.process.request("sync", &self.name, false, |disk, _| disk.sync(&self.name));
        if synced.is_err() {
            self.is_poisoned.store(true, Ordering::SeqCst);
        }
        synced
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}

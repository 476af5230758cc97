// SPDX-License-Identifier: Apache-2.0
//! In place: a writer that writes a file through the store's own file, as the kernel does for a
//! mount.
//!
//! A session has one such file at a time. Until the file is ended, a state of the session promises
//! only the bytes of the file that its last sync promised ([`Doubt`]). Writes also continue to
//! files of sets that another process has taken over or that are published: they must change
//! nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use esker_base::clock::Clock;
use esker_base::{Random, Result};
use esker_fs::file::OpenFile;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;
use esker_table::tree::Durability;
use parking_lot::Mutex;

use crate::operation::{Answer, Operation, TargetPath};
use crate::reference::Reference;
use crate::subject;
use crate::truth::{Doubt, Version};
use crate::writer::{Work, Writer, patches, paths_of_files};

const SET_ID_BITS: u32 = 0o6000;

/// The file of a session that is being written in place.
pub(crate) struct FileInPlace {
    open: Arc<OpenFile>,
    direct: File,
    path: Vec<u8>,
    /// Its content: the same allocation as in the session's reference, which identifies it there.
    content: Arc<Vec<u8>>,
    /// Its content at the last sync and after each change since. States share it, since bytes
    /// written in place later may be found with earlier records.
    since_sync: Arc<Mutex<Vec<Arc<Vec<u8>>>>>,
    /// Number of its bytes that survive.
    firm_bytes: usize,
}

/// A file that a process wrote in place, and may still have open.
pub(crate) struct KeptFile {
    set: SetId,
    process: u64,
    direct: File,
}

impl FileInPlace {
    /// Its path in `reference` without symbolic links, if it is there and was not written otherwise.
    fn path_in(&self, reference: &Reference) -> Option<Vec<u8>> {
        let is_same = |path: &Vec<u8>| {
            let found = reference.content(&TargetPath::of(path));
            found.is_ok_and(|content| Arc::ptr_eq(&content, &self.content))
        };
        let mut paths = paths_of_files(reference);
        paths.retain(is_same);
        let is_known = paths.contains(&self.path);
        if is_known { Some(self.path.clone()) } else { paths.into_iter().next() }
    }

    fn doubt(&self, path: &[u8]) -> Doubt {
        let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        Doubt { path, contents: self.since_sync.clone(), firm_bytes: self.firm_bytes }
    }

    /// Records that its content is now that at `path` of `reference`.
    fn change(&mut self, reference: &Reference, path: &[u8]) {
        self.content = reference.content(&TargetPath::of(path)).expect("its content was replaced");
        self.since_sync.lock().push(self.content.clone());
        self.firm_bytes = self.firm_bytes.min(self.content.len());
    }
}

impl Work {
    /// The state of the session described by `reference`.
    pub(crate) fn version(&self, reference: &Reference, loose: Option<Vec<u8>>) -> Version {
        let doubt = self.in_place.as_ref().and_then(|file| {
            let path = file.path_in(reference)?;
            Some(file.doubt(&path))
        });
        Version { reference: reference.clone(), loose, doubt }
    }

    /// Returns whether `next` has the file in the session's state and without set-id bits, as a
    /// snapshot shows it before the file is ended.
    pub(crate) fn keeps_in_place(&self, next: &Reference) -> bool {
        let Some(file) = &self.in_place else { return true };
        let Some(path) = file.path_in(next) else { return false };
        let stat = Operation::Stat { path, follow: FollowLinks::No };
        match next.clone().run(&stat) {
            Ok(Answer::Attributes(attributes)) => attributes.mode & SET_ID_BITS == 0,
            _ => false,
        }
    }

    /// Updates the file to the session's current reference.
    pub(crate) fn follow_in_place(&mut self) {
        if let Some(file) = &mut self.in_place
            && let Some(path) = file.path_in(&self.reference)
        {
            file.path = path;
        }
    }
}

impl Writer {
    /// Begins to write a file in place, or continues with the present one.
    pub(crate) fn write_in_place(&mut self, random: &mut Random) {
        match self.work.as_ref().map(|work| work.in_place.is_some()) {
            None => {}
            Some(false) => self.begin_in_place(random),
            Some(true) => match random.below(10) {
                0..5 => self.write_directly(random),
                5..8 => self.sync_in_place(random),
                8 => self.cut_in_place(random),
                _ => self.end_in_place(random),
            },
        }
    }

    fn begin_in_place(&mut self, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let name = format!("direct{}", work.states).into_bytes();
        let at = TargetPath { dir: b"/".to_vec(), name };
        let operation = Operation::Create { at: at.clone(), mode: 0o644 };
        let mut next = work.reference.clone();
        if next.run(&operation).is_err() || work.durability == Durability::Always {
            return;
        }
        self.begin_operation(work, &next, None);
        let created = subject::try_run(&work.session, &operation);
        if self.process.is_dead() {
            return;
        }
        if let Err(error) = created {
            self.check_error("create a file to be written in place", &error);
            return self.observe(next, None, random);
        }
        self.end_operation(next, None);
        let Some(work) = &mut self.work else { return };
        match open_directly(work, &at) {
            Ok(Some((open, direct))) => {
                let content = work.reference.content(&at).expect("it was just created");
                let kept = direct.try_clone().expect("a descriptor");
                work.in_place = Some(FileInPlace {
                    open,
                    direct,
                    path: [&at.dir[..], &at.name].concat(),
                    since_sync: Arc::new(Mutex::new(vec![content.clone()])),
                    content,
                    firm_bytes: 0,
                });
                let (set, process) = (work.session.set(), self.process.number());
                self.kept_files.push(KeptFile { set, process, direct: kept });
                self.write_directly(random);
            }
            Ok(None) => {}
            Err(error) if !self.process.is_dead() => {
                self.check_error("begin to write in place", &error);
                self.restart(random.next_u64());
            }
            Err(_) => {}
        }
    }

    /// Writes to the store's file without the session's knowledge.
    fn write_directly(&mut self, random: &mut Random) {
        let Some(mut work) = self.work.take() else { return };
        let Some(mut file) = work.in_place.take() else { return };
        let (bytes, pieces) = patches(&file.content, random);
        let mut next = work.reference.clone();
        next.replace_content(&TargetPath::of(&file.path), bytes).expect("it is there");
        for (offset, piece) in &pieces {
            file.direct.write_all_at(piece, *offset).expect("memory takes it");
        }
        let now = UNIX_EPOCH + Duration::from_nanos(self.world.machine.clock().now_ns());
        file.direct.set_modified(now).expect("a time");
        self.world.machine.record(|| format!("{} pieces in place", pieces.len()));
        let path = file.path.clone();
        file.change(&next, &path);
        work.in_place = Some(file);
        self.work = Some(work);
        self.push_state(next, None);
    }

    fn sync_in_place(&mut self, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let Some(file) = &work.in_place else { return };
        let synced = work.session.file(&file.open).sync();
        if self.process.is_dead() {
            return;
        }
        if let Err(error) = synced {
            self.check_error("sync a file that is written in place", &error);
            return self.observe(work.reference.clone(), None, random);
        }
        let next = work.reference.clone();
        let Some(work) = &mut self.work else { return };
        let Some(file) = &mut work.in_place else { return };
        file.firm_bytes = file.content.len();
        file.since_sync = Arc::new(Mutex::new(vec![file.content.clone()]));
        let Some(work) = &self.work else { return };
        // A process that took the set over before this answer found the state without its promise.
        self.acknowledge(work);
        self.push_state(next, None);
        let Some(work) = &self.work else { return };
        let synced = work.states - 1;
        self.with_lineage(work.session.set(), |lineage| lineage.durable = synced);
    }

    /// Cuts or extends the file through the session.
    fn cut_in_place(&mut self, random: &mut Random) {
        let Some(work) = &mut self.work else { return };
        let Some(file) = &mut work.in_place else { return };
        let size = random.below(file.content.len() as u64 + 5_000);
        let mut bytes = file.content.to_vec();
        bytes.resize(usize::try_from(size).expect("it is small"), 0);
        let mut next = work.reference.clone();
        let path = file.path.clone();
        next.replace_content(&TargetPath::of(&path), bytes).expect("it is there");
        let (session, open) = (work.session.clone(), file.open.clone());
        // Bytes beyond the cut are no longer certain, even if the cut failed.
        file.change(&next, &path);
        let loose = path.strip_prefix(b"/").unwrap_or(&path).to_vec();
        let Some(work) = &self.work else { return };
        self.begin_operation(work, &next, Some(&loose));
        let cut = session.file(&open).truncate(size);
        if self.process.is_dead() {
            return;
        }
        match cut {
            Ok(()) => self.push_state(next, Some(loose)),
            Err(error) => {
                self.check_error("cut a file that is written in place", &error);
                // Only a reader of the store's file could see whether it was cut.
                self.restart(random.next_u64());
            }
        }
    }

    fn end_in_place(&mut self, random: &mut Random) {
        let Some(work) = &mut self.work else { return };
        let Some(file) = work.in_place.take() else { return };
        let loose = file.path.strip_prefix(b"/").unwrap_or(&file.path).to_vec();
        let next = work.reference.clone();
        let doubt = Some(file.doubt(&file.path));
        let session = work.session.clone();
        self.with_lineage(session.set(), |lineage| {
            lineage.pending = Some(Version { reference: next.clone(), loose: None, doubt });
        });
        let FileInPlace { open, direct, .. } = file;
        drop(direct);
        let ended = session.file(&open).end_in_place().and_then(|_| session.close_file(open));
        // The store's file is closed everywhere.
        let process = self.process.number();
        self.kept_files.retain(|kept| kept.process != process || kept.set != session.set());
        if self.process.is_dead() {
            return;
        }
        match ended {
            Ok(()) => self.push_state(next, Some(loose)),
            Err(error) => {
                self.check_error("end writing in place", &error);
                self.restart(random.next_u64());
            }
        }
    }

    /// Writes to files of sets that this process no longer owns.
    pub(crate) fn write_kept_files(&self, random: &mut Random) {
        let truth = self.world.truth.lock();
        // A session that is fenced and has not noticed still shows writes to its file.
        let own = self.work.as_ref().map(|work| (work.session.set(), self.process.number()));
        for KeptFile { set, process, direct } in &self.kept_files {
            let owner = truth.lineages.get(set).map(|lineage| lineage.owner);
            let is_foreign = owner != Some(*process) && own != Some((*set, *process));
            if is_foreign && random.one_in(2) {
                let noise: Vec<u8> = (0..1 + random.below(9_000)).map(|at| at as u8).collect();
                direct.write_all_at(&noise, random.below(20_000)).expect("memory takes it");
            }
        }
    }
}

/// Opens the new file at `at` for writing in place.
fn open_directly(work: &Work, at: &TargetPath) -> Result<Option<(Arc<OpenFile>, File)>> {
    let open = work.session.open_file(&work.session.namespace().dir(&at.dir)?, &at.name)?;
    match work.session.file(&open).begin_in_place()? {
        Some(direct) => Ok(Some((open, direct))),
        None => work.session.close_file(open).map(|()| None),
    }
}

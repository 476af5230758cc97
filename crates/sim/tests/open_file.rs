// SPDX-License-Identifier: Apache-2.0
//! Open files: a writer writes files through handles, also to files that get other names meanwhile,
//! and reads files that have lost their names.

use std::sync::Arc;

use esker_base::{Kind, Random, Result};
use esker_fs::file::OpenFile;
use esker_fs::ops::RenameFlags;
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;

use crate::operation::{Answer, Operation, TargetPath};
use crate::writer::{Writer, patches, paths_of_files};

impl Writer {
    /// Writes pieces of a file through a handle.
    pub(crate) fn patch(&mut self, random: &mut Random) {
        let Some(path) = self.any_file(random) else { return };
        self.write_pieces(&path, None, random);
    }

    /// Opens a file, gives it another or a further name, and writes it through the handle. The
    /// change of names may fail and be shown nevertheless.
    pub(crate) fn open_moved(&mut self, random: &mut Random) {
        let Some(path) = self.any_file(random) else { return };
        let Some(work) = &self.work else { return };
        let from = TargetPath::of(&path);
        let name = format!("moved{}", random.below(1_000)).into_bytes();
        let to = TargetPath { dir: b"/".to_vec(), name };
        let operation = match random.one_in(2) {
            true => Operation::Link { from: from.clone(), to },
            false => Operation::Rename { from: from.clone(), to, flags: RenameFlags::Replace },
        };
        let Ok(content) = work.reference.content(&from) else { return };
        let session = work.session.clone();
        let opened = open(&session, &from);
        if self.process.is_dead() {
            return;
        }
        let file = match opened {
            Ok(file) => file,
            Err(error) => return self.check_error("open a file", &error),
        };
        self.run_operation(&operation, random);
        let Some(work) = self.work.as_ref().filter(|_| !self.process.is_dead()) else { return };
        if !Arc::ptr_eq(&work.session, &session) {
            return;
        }
        let is_it = |path: &Vec<u8>| {
            work.reference.content(&TargetPath::of(path)).is_ok_and(|it| Arc::ptr_eq(&it, &content))
        };
        let Some(path) = paths_of_files(&work.reference).into_iter().find(is_it) else { return };
        self.write_pieces(&path, Some(file), random);
    }

    /// The path of a file, if there is one.
    fn any_file(&self, random: &mut Random) -> Option<Vec<u8>> {
        let files = paths_of_files(&self.work.as_ref()?.reference);
        (!files.is_empty()).then(|| files[random.below(files.len() as u64) as usize].clone())
    }

    /// Writes pieces of the file at `path` through `file`, or through a handle of its own, and
    /// closes it.
    fn write_pieces(&mut self, path: &[u8], file: Option<Arc<OpenFile>>, random: &mut Random) {
        let Some(work) = &self.work else { return };
        let at = TargetPath::of(path);
        let Ok(before) = work.reference.content(&at) else { return };
        let (bytes, pieces) = patches(&before, random);
        let mut next = work.reference.clone();
        next.replace_content(&at, bytes).expect("its content was read");
        if !work.keeps_in_place(&next) {
            return;
        }
        self.world.machine.record(|| format!("patch {at:?} in {} pieces", pieces.len()));
        let loose = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        self.begin_operation(work, &next, Some(&loose));
        let is_synced = random.one_in(4);
        let session = &work.session;
        let written = file.map_or_else(|| open(session, &at), Ok).and_then(|file| {
            for (offset, bytes) in &pieces {
                session.file(&file).write(*offset, bytes)?;
                if is_synced {
                    session.file(&file).sync()?;
                }
            }
            session.close_file(file)
        });
        if self.process.is_dead() {
            return;
        }
        match written {
            Ok(()) => self.end_operation(next, Some(loose)),
            Err(error) => {
                self.check_error("patch", &error);
                self.observe(next, Some(loose), random);
            }
        }
    }

    /// Opens a file, and removes its only name.
    pub(crate) fn open_removed(&mut self, random: &mut Random) {
        let Some(path) = self.any_file(random) else { return };
        let Some(work) = &self.work else { return };
        let at = TargetPath::of(&path);
        let stat = Operation::Stat { path, follow: FollowLinks::No };
        let mut next = work.reference.clone();
        let is_only_name = match next.run(&stat) {
            Ok(Answer::Attributes(attributes)) => attributes.nlink == 1,
            _ => false,
        };
        let (Ok(bytes), true) = (work.reference.content(&at), is_only_name) else { return };
        if next.run(&Operation::Unlink(at.clone())).is_err() || !work.keeps_in_place(&next) {
            return;
        }
        self.begin_operation(work, &next, None);
        let removed = remove_open(&work.session, &at);
        if self.process.is_dead() {
            return;
        }
        match removed {
            Ok(file) => {
                self.end_operation(next, None);
                if let Some(work) = &mut self.work {
                    work.removed.push((file, bytes.to_vec()));
                }
            }
            Err(error) => {
                self.check_error("remove an open file", &error);
                self.observe(next, None, random);
            }
        }
    }

    /// Checks that files without a name still have their bytes.
    pub(crate) fn check_removed(&self) {
        let Some(work) = &self.work else { return };
        // A session that is fenced or failed need not be readable.
        if self.process.is_dead() || !self.owns(work) || self.world.history.is_eager() {
            return;
        }
        for (file, bytes) in &work.removed {
            let read = || work.session.file(file).read(0, bytes.len() + 1);
            match self.world.machine.pause(read) {
                Ok(found) if found == *bytes => {}
                Ok(_) => self.world.fail("an open file without a name has other bytes"),
                Err(error) if matches!(error.kind(), Kind::Closed | Kind::Fenced) => {}
                Err(error) => {
                    self.world.fail(format!("an open file without a name: {error:?}"));
                }
            }
        }
    }
}

fn open(session: &Session, at: &TargetPath) -> Result<Arc<OpenFile>> {
    session.open_file(&session.namespace().dir(&at.dir)?, &at.name)
}

fn remove_open(session: &Session, at: &TargetPath) -> Result<Arc<OpenFile>> {
    let file = open(session, at)?;
    session.unlink(&session.namespace().dir(&at.dir)?, &at.name)?;
    Ok(file)
}

// SPDX-License-Identifier: Apache-2.0
//! Client files: the files that a client has open, by identity.
//!
//! An open file stays usable while other clients move and remove its names. It is open for the
//! client, not for a connection, so a client that connects again finds it open. A server that takes
//! over has none open: clients open theirs again, and files without names are lost. How many files a
//! client, a user and all users have open is bounded (`open_file_limits`).

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::inode::Inode;
use esker_fs::session::Session;
use esker_fs::stack::identity::{EXECUTE, Identity, READ, WRITE};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::open_file_limits::{AdmittedFile, OpenFileLimits};

/// Maximum number of files that a client may have open.
pub(super) const CLIENT_FILES_MAX: usize = 1 << 16;

/// A file that a client has open, and what the client may do with it.
#[derive(Clone, Debug)]
pub(super) struct ClientFile {
    pub file: Arc<OpenFile>,
    pub may_read: bool,
    pub may_write: bool,
}

/// The files that a client has open.
#[derive(Debug)]
pub(super) struct ClientFiles {
    limits: Arc<OpenFileLimits>,
    /// The user of the client.
    uid: u32,
    files: Mutex<HashMap<u128, KeptFile>>,
}

/// A file that is open, and counts as that.
#[derive(Debug)]
struct KeptFile {
    opened: ClientFile,
    _admitted: AdmittedFile,
}

impl ClientFile {
    /// What `identity` may do with `inode`. The owner may do everything, since the permissions of a
    /// new file do not apply to the program that makes it; the client's kernel checks those of other
    /// openers. A file that may be executed may be read for that.
    ///
    /// # Errors
    /// `Denied` if that is nothing.
    pub fn new(file: Arc<OpenFile>, identity: &Identity, inode: &Inode) -> Result<Self> {
        let is_owner = identity.uid == inode.uid;
        let may = |wanted| is_owner || identity.check(wanted, inode, b"file").is_ok();
        let (may_read, may_write) = (may(READ) || may(EXECUTE), may(WRITE));
        if !may_read && !may_write {
            return Err(Error::new(Kind::Denied, "permission denied"));
        }
        Ok(Self { file, may_read, may_write })
    }
}

impl ClientFiles {
    /// A client of the user `uid`, whose open files count within `limits`, and which has none.
    pub fn new(limits: &Arc<OpenFileLimits>, uid: u32) -> Self {
        Self { limits: limits.clone(), uid, files: Mutex::default() }
    }

    /// Returns the file `id`, if it is open.
    pub fn get(&self, id: u128) -> Option<ClientFile> {
        self.files.lock().get(&id).map(|kept| kept.opened.clone())
    }

    /// Admits one more open file, which counts as long as the result.
    ///
    /// # Errors
    /// `TooManyOpenFiles`.
    pub fn admit(&self) -> Result<AdmittedFile> {
        if self.files.lock().len() >= CLIENT_FILES_MAX {
            let what = format!("the client has {CLIENT_FILES_MAX} files open: close some");
            return Err(Error::new(Kind::TooManyOpenFiles, what));
        }
        self.limits.admit(self.uid)
    }

    /// Keeps `opened`, which `session` has just opened and which was `admitted`, until it is closed.
    /// Opening a file twice does not count twice.
    ///
    /// # Errors
    /// Those of closing a file that was open already.
    pub fn keep(
        &self,
        session: &Session,
        (opened, admitted): (ClientFile, AdmittedFile),
    ) -> Result<()> {
        let kept = KeptFile { opened, _admitted: admitted };
        let before = self.files.lock().insert(kept.opened.file.id(), kept);
        before.map_or(Ok(()), |before| session.close_file(before.opened.file))
    }

    /// Lets the client do with an open file also what `now` allows: another program opens it after
    /// its permissions have changed.
    pub fn widen(&self, now: &ClientFile) {
        if let Some(KeptFile { opened, .. }) = self.files.lock().get_mut(&now.file.id()) {
            opened.may_read |= now.may_read;
            opened.may_write |= now.may_write;
        }
    }

    /// Closes the file `id`, if it is open.
    ///
    /// # Errors
    /// As `Session::close_file`; the file is closed even then.
    pub fn close(&self, session: &Session, id: u128) -> Result<()> {
        let closed = self.files.lock().remove(&id);
        closed.map_or(Ok(()), |closed| session.close_file(closed.opened.file))
    }

    /// Closes all files. The session writes what could not be written at its next sync.
    pub fn close_all(&self, session: &Session) {
        let files = std::mem::take(&mut *self.files.lock());
        for (_, closed) in files {
            let _ = session.close_file(closed.opened.file);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Open file limits: the number of files that a server keeps open, in all and for each user.
//!
//! An open file takes memory until its client closes it, leaves, or is forgotten. A client has a limit
//! of its own (`client_files`); a user other than the server's may have many clients, and has at most
//! a share of all open files.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::client_files::CLIENT_FILES_MAX;

/// Files that a server keeps open: 700 MB of memory if all are different ones, some 1,300 bytes each.
const SERVER_FILES_MAX: usize = 1 << 19;
/// Files that a server keeps open for one user other than its own.
const USER_FILES_MAX: usize = 1 << 17;

const _: () = assert!(CLIENT_FILES_MAX <= USER_FILES_MAX && USER_FILES_MAX < SERVER_FILES_MAX);

/// The files that a server has open.
#[derive(Debug)]
pub(super) struct OpenFileLimits {
    /// Files in all, and those of one user other than the server's, at most.
    server_max: usize,
    user_max: usize,
    /// The user of the server.
    own_uid: u32,
    open: Mutex<OpenFileCounts>,
}

#[derive(Debug, Default)]
struct OpenFileCounts {
    all: usize,
    by_user: HashMap<u32, usize>,
}

/// An open file that counts while this is alive.
#[derive(Debug)]
pub(super) struct AdmittedFile {
    limits: Arc<OpenFileLimits>,
    uid: u32,
}

impl OpenFileLimits {
    /// The limits of a server of the user `own_uid`, which has no file open.
    pub fn new(own_uid: u32) -> Arc<Self> {
        Self::with((SERVER_FILES_MAX, USER_FILES_MAX), own_uid)
    }

    fn with((server_max, user_max): (usize, usize), own_uid: u32) -> Arc<Self> {
        Arc::new(Self { server_max, user_max, own_uid, open: Mutex::default() })
    }

    /// Admits one more open file of the user `uid`.
    ///
    /// # Errors
    /// `TooManyOpenFiles`.
    pub fn admit(self: &Arc<Self>, uid: u32) -> Result<AdmittedFile> {
        let OpenFileCounts { all, by_user } = &mut *self.open.lock();
        let too_many = |what: String| Err(Error::new(Kind::TooManyOpenFiles, what));
        if *all >= self.server_max {
            return too_many(format!(
                "the server has {all} files open, which is the most it keeps: close some"
            ));
        }
        let own = by_user.get(&uid).copied().unwrap_or(0);
        if uid != self.own_uid && own >= self.user_max {
            return too_many(format!(
                "user {uid} has {own} files open at this server: close some, or wait ten minutes \
                 if they are of clients that went away"
            ));
        }
        *all += 1;
        by_user.insert(uid, own + 1);
        Ok(AdmittedFile { limits: self.clone(), uid })
    }
}

impl Drop for AdmittedFile {
    fn drop(&mut self) {
        let OpenFileCounts { all, by_user } = &mut *self.limits.open.lock();
        *all -= 1;
        if let Some(own) = by_user.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                by_user.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_user_takes_all_open_files() {
        let limits = OpenFileLimits::with((8, 2), 7);
        let admit = |uid| limits.admit(uid);
        let others = [admit(1), admit(1), admit(2)].map(|admitted| admitted.expect("a share"));
        let refused = admit(1).expect_err("more than a share");
        assert_eq!(refused.kind(), Kind::TooManyOpenFiles);
        let own: Vec<_> =
            (0..5).map(|_| admit(7).expect("the server's user has the rest")).collect();
        for uid in [2, 7] {
            assert_eq!(admit(uid).expect_err("all are taken").kind(), Kind::TooManyOpenFiles);
        }
        drop(own);
        admit(2).expect("there is room again");
        drop(others);
        assert_eq!(limits.open.lock().all, 0);
        assert!(limits.open.lock().by_user.is_empty());
    }
}

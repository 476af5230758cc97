// SPDX-License-Identifier: Apache-2.0
//! Bulk insertion: a directory that a client fills by itself, at the speed of a session, and that
//! then becomes part of a live namespace at once.
//!
//! The client writes a change set of its own into the store, without the server. The server then
//! shows the set's tables as its own, by reference. Its work is a few store requests whatever the
//! number of files.
//! Source: IndexFS, thesis §2.2 (bulk insertion protocol).

use esker_base::Result;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_table::tree::Durability;

use super::live_dir::LiveDir;
use super::tree::LiveTree;

/// Name of the directory in the client's set.
const CONTENT: &[u8] = b"content";

/// A directory that is not part of a live namespace yet. Dropping it gives up what was not
/// inserted.
#[derive(Debug)]
pub struct BulkInsertion {
    repository: Repository,
    session: Session,
    dir: Dir,
    options: SessionOptions,
}

impl BulkInsertion {
    /// Begins an empty directory with permission bits `mode` in the store of `repository`, which
    /// must be that of the live namespace. Its session logs nothing: a client that dies before the
    /// insertion leaves garbage only. Cost: as [`Repository::begin`].
    ///
    /// # Errors
    /// Errors of the store.
    pub fn begin(repository: &Repository, mode: u32, options: SessionOptions) -> Result<Self> {
        let mut options = options.private();
        options.own_identities = true;
        options.tree.durability = Durability::None;
        let session = repository.begin(&[], options.clone())?;
        let dir = session.mkdir(session.root(), CONTENT, mode)?;
        Ok(Self { repository: repository.clone(), session, dir, options })
    }

    /// The session that fills the directory.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Ends the changes of the directory and inserts it as `name` in `parent`, durably: others see
    /// nothing of it before, and all of it afterwards. After an error other than those of the
    /// connection it can be inserted elsewhere. Cost: the flush of the session, two round trips,
    /// and at the server some store requests.
    ///
    /// # Errors
    /// As [`LiveTree::insert_set`]; errors of the store.
    pub fn insert(&self, tree: &mut LiveTree, parent: &LiveDir, name: &[u8]) -> Result<()> {
        let set = self.session.complete()?;
        tree.insert_set((set, CONTENT), parent, name)
    }
}

impl Drop for BulkInsertion {
    /// Gives up the session's own hold of the set. A live namespace that has adopted it holds it,
    /// too.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // What stays is collected once this process has ended.
            let _ = self.repository.give_up(self.session.set(), &self.options);
        }
    }
}

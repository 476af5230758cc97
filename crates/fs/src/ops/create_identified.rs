// SPDX-License-Identifier: Apache-2.0
//! Creating files whose identity the caller chose, so that a repeated request finds its own file.

use esker_base::Result;

use crate::inode::{FileId, FileKind, Inode, NameKind, key};
use crate::session::{NameState, Session, exists, put};
use crate::stack::dir::Dir;

impl Session {
    /// Creates an empty regular file like [`Session::create`], with the identity `id`, which the
    /// caller ensures no other file has or will have. Succeeds if `name` is that file already:
    /// then it was created by an earlier attempt. Cost: as [`Session::create`].
    ///
    /// # Errors
    /// As [`Session::create`].
    pub fn create_identified(&self, dir: &Dir, name: &[u8], mode: u32, id: FileId) -> Result<()> {
        let entry = NameKind::Is(FileKind::File);
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        inode.id = id.0;
        let key = key(dir.id(), name);
        self.tree().prefetch(&key);
        let _structure = self.read_structure();
        crate::stack::path::check_name(name)?;
        self.check_change(dir, name)?;
        self.own(dir, &mut inode, None);
        let below = self.below(dir, &key)?;
        let is_new = below.inode.is_none() && below.next_generation == 0;
        if is_new && self.tree().insert(&mut inode.row(&key), |_, _| ())?.is_some() {
            dir.touch(inode.ctime_ns);
            return Ok(());
        }
        let is_made = self.update([key], |[own], batch| {
            let state = NameState::of(own, &below)?;
            match state.inode {
                Some(found) if found.id == id.0 => return Ok(false),
                Some(_) => return Err(exists(name)),
                None => inode.generation = state.next_generation,
            }
            put(batch, &key, &inode);
            Ok(true)
        })?;
        if is_made {
            dir.touch(inode.ctime_ns);
        }
        Ok(())
    }
}

//! Indexed directories: giving a finished one its name.

use esker_base::Result;

use crate::dir::Dir;
use crate::indexed;
use crate::inode::{Entry, Extent, FileKind, Inode};
use crate::session::Session;

impl Session {
    /// Creates the entry `name` in `dir` for the indexed directory `number`, which was finished below
    /// [`indexed::prefix`] of this session's set and number, and has `size` bytes.
    ///
    /// Survives what the session's durability promises once it returns. Cost: one read.
    ///
    /// # Errors
    /// `NotFound` if there is no finished directory of that number; as [`Session::create`].
    pub fn create_indexed(
        &self,
        dir: &Dir,
        name: &[u8],
        mode: u32,
        number: u64,
        size: u64,
    ) -> Result<Inode> {
        let root = indexed::root(self.set(), number);
        let bytes = self.layers().source().store.get(&root, indexed::ROOT_BYTES_MAX)?;
        let entry = Entry::Is(FileKind::Indexed);
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        inode.size = size;
        inode.extent = Some(Extent {
            set: self.set(),
            log: number,
            checksum: indexed::checksum(&bytes),
            ..Extent::default()
        });
        self.insert(dir, name, &mut inode)?;
        Ok(inode)
    }
}

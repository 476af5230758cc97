//! Place: how the file behind an inode number is reached.

use esker_fs::dir::Dir;
use esker_fs::inode::Inode;

use crate::indexed::KeyFile;

/// How a file is reached. The kernel serializes changes of one directory's names, so a place is
/// changed by whoever changes the name.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A directory, by its handle, which follows it when it moves.
    Dir(Dir),
    /// The name in the directory. Of a file with several names it is its name among the links,
    /// which stays whatever becomes of the others.
    Name(Dir, Box<[u8]>),
    /// A key of an indexed directory.
    Key(Box<KeyFile>),
    /// Its last name is gone; what is left of its attributes.
    Gone(Box<Inode>),
}

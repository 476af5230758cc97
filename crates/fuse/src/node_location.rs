// SPDX-License-Identifier: Apache-2.0
//! Node location: the place in the namespace of the file behind an inode number.

use esker_fs::inode::Inode;
use esker_fs::stack::dir::Dir;

use crate::indexed::KeyFile;

/// Location of a file. The kernel serializes name changes within a directory; the request that
/// changes the name also updates the location.
#[derive(Clone, Debug)]
pub(crate) enum NodeLocation {
    /// A directory, by its handle, which follows it when it moves.
    Dir(Dir),
    /// A name in a directory. For a file with several names, this is its name in the directory of
    /// links, which does not depend on its other names.
    Name(Dir, Box<[u8]>),
    /// A key of an indexed directory.
    Key(Box<KeyFile>),
    /// The last name is gone; its remaining attributes.
    Gone(Box<Inode>),
}

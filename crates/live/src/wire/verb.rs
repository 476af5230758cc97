// SPDX-License-Identifier: Apache-2.0
//! Verb: the kind of request that a frame makes or answers. Layout: docs/format/live.md, "Verbs".

/// The kind of request that a frame makes or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verb {
    /// The first frame of a connection.
    Hello = 1,
    /// The server's challenge to a client that claims to know its secret.
    Challenge = 2,
    /// The client's answer to a challenge.
    Proof = 3,
    /// The end of the handshake.
    Welcome = 4,
    /// The client ends, and will not repeat requests.
    Goodbye = 5,
    /// Nothing: for the measurement of round trips.
    Null = 16,
    /// The attributes of names in a directory.
    Lookup = 17,
    /// Opens the place to which a path leads.
    Resolve = 18,
    /// Entries of a directory.
    List = 19,
    /// Bytes of a file.
    Read = 20,
    /// The target of a symbolic link.
    ReadSymlink = 21,
    /// The attributes of a file, wherever it is.
    Attributes = 22,
    /// The value of an extended attribute.
    GetXattr = 23,
    /// The names of all extended attributes.
    ListXattrs = 24,
    /// New empty files.
    Create = 32,
    /// New directories.
    MakeDirectory = 33,
    /// A new symbolic link.
    MakeSymlink = 34,
    /// Another name of a file.
    Link = 35,
    /// Removal of names of files.
    Unlink = 36,
    /// Removal of empty directories.
    RemoveDirectory = 37,
    /// A new name for an old one.
    Rename = 38,
    /// Changes of attributes.
    SetAttributes = 39,
    /// Bytes for a file.
    Write = 40,
    /// A new file of any kind, for a user.
    MakeNode = 41,
    /// A new value of an extended attribute.
    SetXattr = 42,
    /// Removal of an extended attribute.
    RemoveXattr = 43,
    /// Opens a file, which then stays usable wherever its name goes.
    Open = 44,
    /// Closes a file that was opened.
    Close = 45,
    /// Room or zeros in a range of a file.
    Allocate = 46,
    /// A name for the directory of an adopted set.
    InsertAdopted = 47,
    /// Waits until every change that was answered before survives power loss.
    Sync = 48,
    /// A snapshot of the current state, published under a name.
    Snapshot = 49,
    /// Counters of the server, as JSON.
    Status = 50,
    /// Makes a directory of a complete set part of the namespace, without a name.
    AdoptSet = 51,
    /// No change is carried out until the thaw, or the end of the connection.
    Freeze = 52,
    /// The end of a freeze.
    Thaw = 53,
    /// The part of a snapshot that the seat has.
    SnapshotPart = 54,
    /// No name is made in a part of a spread directory while its removal is decided.
    ClosePart = 55,
    /// A name for a file at another seat.
    NameSeatFile = 56,
    /// A new name, in a directory at another seat, for an old one.
    RenameAcross = 57,
    /// Another name of a file, in a directory at another seat.
    LinkAcross = 58,
}

/// Verbs by their codes.
const BY_CODE: [Option<Verb>; 64] = {
    let mut verbs = [None; 64];
    let mut index = 0;
    while index < Verb::ALL.len() {
        verbs[Verb::ALL[index] as usize] = Some(Verb::ALL[index]);
        index += 1;
    }
    verbs
};

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 41] = [
        Self::Hello,
        Self::Challenge,
        Self::Proof,
        Self::Welcome,
        Self::Goodbye,
        Self::Null,
        Self::Lookup,
        Self::Resolve,
        Self::List,
        Self::Read,
        Self::ReadSymlink,
        Self::Attributes,
        Self::GetXattr,
        Self::ListXattrs,
        Self::Create,
        Self::MakeDirectory,
        Self::MakeSymlink,
        Self::Link,
        Self::Unlink,
        Self::RemoveDirectory,
        Self::Rename,
        Self::SetAttributes,
        Self::Write,
        Self::MakeNode,
        Self::SetXattr,
        Self::RemoveXattr,
        Self::Open,
        Self::Close,
        Self::Allocate,
        Self::InsertAdopted,
        Self::Sync,
        Self::Snapshot,
        Self::Status,
        Self::AdoptSet,
        Self::Freeze,
        Self::Thaw,
        Self::SnapshotPart,
        Self::ClosePart,
        Self::NameSeatFile,
        Self::RenameAcross,
        Self::LinkAcross,
    ];

    /// Returns the verb of a byte on the wire.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        BY_CODE.get(usize::from(code)).copied().flatten()
    }

    /// The verb as metrics name it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Challenge => "challenge",
            Self::Proof => "proof",
            Self::Welcome => "welcome",
            Self::Goodbye => "goodbye",
            Self::Null => "null",
            Self::Lookup => "lookup",
            Self::Resolve => "resolve",
            Self::List => "list",
            Self::Read => "read",
            Self::ReadSymlink => "read_symlink",
            Self::Attributes => "attributes",
            Self::GetXattr => "get_xattr",
            Self::ListXattrs => "list_xattrs",
            Self::Create => "create",
            Self::MakeDirectory => "mkdir",
            Self::MakeSymlink => "symlink",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::RemoveDirectory => "rmdir",
            Self::Rename => "rename",
            Self::SetAttributes => "set_attributes",
            Self::Write => "write",
            Self::MakeNode => "make_node",
            Self::SetXattr => "set_xattr",
            Self::RemoveXattr => "remove_xattr",
            Self::Open => "open",
            Self::Close => "close",
            Self::Allocate => "allocate",
            Self::InsertAdopted => "insert_adopted",
            Self::Sync => "sync",
            Self::Snapshot => "snapshot",
            Self::Status => "status",
            Self::AdoptSet => "adopt_set",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
            Self::SnapshotPart => "snapshot_part",
            Self::ClosePart => "close_part",
            Self::NameSeatFile => "name_seat_file",
            Self::RenameAcross => "rename_across",
            Self::LinkAcross => "link_across",
        }
    }

    /// True if it is part of a handshake, and not a request.
    #[must_use]
    pub fn is_handshake(self) -> bool {
        matches!(self, Self::Hello | Self::Challenge | Self::Proof | Self::Welcome)
    }

    /// True if it changes the namespace, so that it must be carried out exactly once.
    #[must_use]
    pub fn is_change(self) -> bool {
        matches!(self as u8, 32..48 | 56..59)
    }

    /// True if it reads a file that its items name.
    #[must_use]
    pub fn is_of_file(self) -> bool {
        use Verb::{Attributes, GetXattr, ListXattrs, Read, ReadSymlink};
        matches!(self, Read | ReadSymlink | Attributes | GetXattr | ListXattrs)
    }

    /// True if its payload begins with the identity of a directory, in which its items are.
    #[must_use]
    pub fn is_in_directory(self) -> bool {
        self.is_change() || self.is_of_file() || matches!(self, Self::Lookup | Self::List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        for verb in Verb::ALL {
            assert_eq!(Verb::of_code(verb as u8), Some(verb));
        }
        assert_eq!((0..=255).filter_map(Verb::of_code).count(), Verb::ALL.len());
        assert!(Verb::Write.is_change() && !Verb::Sync.is_change() && !Verb::Read.is_change());
        assert!(Verb::RenameAcross.is_change() && !Verb::ClosePart.is_change());
    }
}

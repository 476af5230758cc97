// SPDX-License-Identifier: Apache-2.0
//! The error of every Esker crate: a kind that says what the caller should do, the place, and the
//! cause.
//!
//! One table maps kinds to errno and to exit codes (`Kind::errno`, `Kind::exit_code`), so that no
//! front end invents its own.

use std::fmt;

/// Kinds of errors, told apart by what a caller can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No such object, name, file or attribute.
    NotFound,
    /// The name is taken.
    Exists,
    /// A path component is not a directory.
    NotADirectory,
    /// The operation does not work on a directory.
    IsADirectory,
    /// The directory still has entries.
    NotEmpty,
    /// The mode bits, or the store, deny it.
    Denied,
    /// Another process changed the same thing; read it again and retry.
    Conflict,
    /// Another writer took over this change set; this one has stopped.
    Fenced,
    /// The store did not answer; retrying later may help.
    Unavailable,
    /// Bytes that are not what was written.
    Corrupt,
    /// The request is invalid: a bad argument, an unsupported format version.
    Invalid,
    /// A name, value or object over its limit.
    TooLarge,
    /// The session, log or store was closed or poisoned by an earlier failure.
    Closed,
    /// The store has no room left.
    NoSpace,
    /// The store can only be read.
    ReadOnly,
    /// Only the owner or the superuser may do it, regardless of the mode bits.
    NotPermitted,
    /// Symbolic links that form a loop.
    Loop,
    /// The file has no such extended attribute.
    NoAttribute,
    /// The file already has the maximum number of names.
    TooManyLinks,
    /// The file would exceed the maximum file size.
    FileTooLarge,
    /// Not supported here, for any argument.
    Unsupported,
    /// The device under the store failed; retrying is not known to help.
    DeviceFailed,
    /// The process, or the machine, has reached its limit of open files.
    TooManyOpenFiles,
    /// The two places are parts of the namespace between which nothing is linked or moved; copy.
    CrossDevice,
}

impl Kind {
    /// All kinds, in the order of their exit codes.
    pub const ALL: [Self; 24] = [
        Self::NotFound,
        Self::Exists,
        Self::NotADirectory,
        Self::IsADirectory,
        Self::NotEmpty,
        Self::Denied,
        Self::Conflict,
        Self::Fenced,
        Self::Unavailable,
        Self::Corrupt,
        Self::Invalid,
        Self::TooLarge,
        Self::Closed,
        Self::NoSpace,
        Self::ReadOnly,
        Self::NotPermitted,
        Self::Loop,
        Self::NoAttribute,
        Self::TooManyLinks,
        Self::FileTooLarge,
        Self::Unsupported,
        Self::DeviceFailed,
        Self::TooManyOpenFiles,
        Self::CrossDevice,
    ];

    /// Returns the errno of a POSIX front end for this kind.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotFound => 2,          // ENOENT
            Self::Exists => 17,           // EEXIST
            Self::NotADirectory => 20,    // ENOTDIR
            Self::IsADirectory => 21,     // EISDIR
            Self::NotEmpty => 39,         // ENOTEMPTY
            Self::Denied => 13,           // EACCES
            Self::Conflict => 11,         // EAGAIN
            Self::Fenced => 116,          // ESTALE
            Self::Unavailable => 5,       // EIO: programs do not expect files to time out
            Self::Corrupt => 5,           // EIO
            Self::Invalid => 22,          // EINVAL
            Self::TooLarge => 36,         // ENAMETOOLONG
            Self::Closed => 5,            // EIO: the descriptor itself did not fail
            Self::NoSpace => 28,          // ENOSPC
            Self::ReadOnly => 30,         // EROFS
            Self::NotPermitted => 1,      // EPERM
            Self::Loop => 40,             // ELOOP
            Self::NoAttribute => 61,      // ENODATA
            Self::TooManyLinks => 31,     // EMLINK
            Self::FileTooLarge => 27,     // EFBIG
            Self::Unsupported => 95,      // EOPNOTSUPP
            Self::DeviceFailed => 5,      // EIO
            Self::TooManyOpenFiles => 24, // EMFILE
            Self::CrossDevice => 18,      // EXDEV
        }
    }

    /// Returns the kind with this exit code: the form in which kinds travel between processes.
    #[must_use]
    pub fn of_exit_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.exit_code() == code)
    }

    /// Returns the exit code of the `esker` command. 0 is success and 2 a usage error.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::NotFound => 3,
            Self::Exists => 4,
            Self::NotADirectory => 5,
            Self::IsADirectory => 6,
            Self::NotEmpty => 7,
            Self::Denied => 8,
            Self::Conflict => 9,
            Self::Fenced => 10,
            Self::Unavailable => 11,
            Self::Corrupt => 12,
            Self::Invalid => 13,
            Self::TooLarge => 14,
            Self::Closed => 15,
            Self::NoSpace => 16,
            Self::ReadOnly => 17,
            Self::NotPermitted => 18,
            Self::Loop => 19,
            Self::NoAttribute => 20,
            Self::TooManyLinks => 21,
            Self::FileTooLarge => 22,
            Self::Unsupported => 23,
            Self::DeviceFailed => 24,
            Self::TooManyOpenFiles => 25,
            Self::CrossDevice => 26,
        }
    }

    /// Returns the kind of a failed system call.
    #[must_use]
    pub fn of_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        // The standard library has no kinds for these.
        match error.raw_os_error() {
            // EIO
            Some(5) => return Self::DeviceFailed,
            // ENFILE, EMFILE
            Some(23 | 24) => return Self::TooManyOpenFiles,
            _ => {}
        }
        match error.kind() {
            Io::NotFound => Self::NotFound,
            Io::AlreadyExists => Self::Exists,
            Io::NotADirectory => Self::NotADirectory,
            Io::IsADirectory => Self::IsADirectory,
            Io::DirectoryNotEmpty => Self::NotEmpty,
            Io::PermissionDenied => Self::Denied,
            Io::StorageFull | Io::QuotaExceeded => Self::NoSpace,
            Io::ReadOnlyFilesystem => Self::ReadOnly,
            Io::InvalidInput | Io::InvalidFilename => Self::Invalid,
            Io::FileTooLarge => Self::FileTooLarge,
            Io::TooManyLinks => Self::TooManyLinks,
            Io::Unsupported => Self::Unsupported,
            Io::CrossesDevices => Self::CrossDevice,
            Io::UnexpectedEof | Io::InvalidData => Self::Corrupt,
            _ => Self::Unavailable,
        }
    }
}

/// An error with its kind, the object and place it concerns, and its cause.
pub struct Error {
    inner: Box<ErrorDetails>,
}

struct ErrorDetails {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of every fallible operation of Esker.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of `kind`; `context` names the object, the place and what to do next.
    #[must_use]
    pub fn new(kind: Kind, context: impl Into<String>) -> Self {
        Self { inner: Box::new(ErrorDetails { kind, context: context.into(), source: None }) }
    }

    /// Makes the error of a failed system call on `context`.
    #[must_use]
    pub fn io(error: std::io::Error, context: impl Into<String>) -> Self {
        Self::new(Kind::of_io(&error), context).with_source(error)
    }

    /// Makes the error for bytes of `object` at `offset` that are not what was written; `what` says
    /// what was expected and what was found.
    #[must_use]
    pub fn corrupt(object: &str, offset: u64, what: impl fmt::Display) -> Self {
        Self::new(Kind::Corrupt, format!("{object} at byte {offset}: {what}"))
    }

    /// Attaches the cause to the error.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Adds an outer context to the error: `context: …`.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.inner.context = format!("{context}: {}", self.inner.context);
        self
    }

    /// The kind, which says what a caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The object and place, in words.
    #[must_use]
    pub fn context(&self) -> &str {
        &self.inner.context
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.context)?;
        if let Some(source) = &self.inner.source {
            write!(f, " ({source})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

/// The kind becomes the standard library's nearest one, and the error its source.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            // EAGAIN would ask callers to wait until a descriptor is ready.
            Kind::Conflict => Io::Other,
            Kind::Corrupt => Io::InvalidData,
            kind => Self::from_raw_os_error(kind.errno()).kind(),
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_standard_library_has_the_nearest_kind_and_the_source() {
        for kind in Kind::ALL {
            let io = std::io::Error::from(Error::new(kind, "the object"));
            let retried = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::Interrupted];
            assert!(!retried.contains(&io.kind()), "{kind:?} would be retried at once");
            let error = io.downcast::<Error>().expect("it is the source");
            assert_eq!((error.kind(), error.context()), (kind, "the object"));
        }
        let io = std::io::Error::from(Error::new(Kind::NotFound, "a"));
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn says_place_and_cause() {
        let io = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = Error::io(io, "write set/1/table/2").within("flush");
        assert_eq!(error.kind(), Kind::NoSpace);
        assert!(error.to_string().starts_with("flush: write set/1/table/2 ("));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Failure: errors of the driver and of the server as errors of Esker.

use esker_base::{Error, Kind};
use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};

/// The error for `error`, met on `what`.
pub(super) fn failed(error: DriverError, what: impl std::fmt::Display) -> Error {
    match code_of(&error.kind) {
        Some((code, said)) => {
            Error::new(kind_of_code(code), format!("{what}: {said} (MongoDB error {code})"))
        }
        // The driver's text for a whole error lists its fields.
        None => Error::new(kind_of(&error.kind), format!("{what}: {}", error.kind)),
    }
}

/// The code and the message of an error that the server returned.
fn code_of(kind: &ErrorKind) -> Option<(i32, &str)> {
    match kind {
        ErrorKind::Command(error) => Some((error.code, &error.message)),
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some((error.code, &error.message)),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => {
            Some((error.code, &error.message))
        }
        _ => None,
    }
}

/// The kind of an error of the driver.
fn kind_of(kind: &ErrorKind) -> Kind {
    match kind {
        ErrorKind::InvalidArgument { .. } | ErrorKind::InvalidTlsConfig { .. } => Kind::Invalid,
        ErrorKind::Authentication { .. } => Kind::Denied,
        ErrorKind::Bson(_) | ErrorKind::InvalidResponse { .. } => Kind::Corrupt,
        ErrorKind::IncompatibleServer { .. } | ErrorKind::SessionsNotSupported => Kind::Unsupported,
        ErrorKind::Shutdown => Kind::Closed,
        // Connections, the choice of a server, and names of hosts.
        _ => Kind::Unavailable,
    }
}

/// The kind of an error that the server returned, by the names in the comments of its error codes.
fn kind_of_code(code: i32) -> Kind {
    match code {
        // DuplicateKey, in its forms, and NamespaceExists
        11_000 | 11_001 | 12_582 | 48 => Kind::Exists,
        // NamespaceNotFound
        26 => Kind::NotFound,
        // UserNotFound, Unauthorized, AuthenticationFailed, AtlasError
        11 | 13 | 18 | 8_000 => Kind::Denied,
        // HostUnreachable, HostNotFound, MaxTimeMSExpired, WriteConcernTimeout, NetworkTimeout,
        // ShutdownInProgress, PrimarySteppedDown, ExceededTimeLimit, SocketException,
        // NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
        // NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        6 | 7 | 50 | 64 | 89 | 91 | 189 | 262 | 9_001 | 10_107 | 11_600 | 11_602 | 13_435
        | 13_436 => Kind::Unavailable,
        // LockBusy, WriteConflict, ConflictingOperationInProgress
        46 | 112 | 117 => Kind::Conflict,
        // BSONObjectTooLarge
        10_334 => Kind::TooLarge,
        // OutOfDiskSpace
        14_031 => Kind::NoSpace,
        // CommandNotFound, CommandNotSupported, APIStrictError
        59 | 115 | 323 => Kind::Unsupported,
        _ => Kind::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_kinds() {
        for (code, kind) in [
            (11_000, Kind::Exists),
            (18, Kind::Denied),
            (13, Kind::Denied),
            (10_107, Kind::Unavailable),
            (14_031, Kind::NoSpace),
            (2, Kind::Invalid),
        ] {
            assert_eq!(kind_of_code(code), kind, "{code}");
        }
    }

    #[test]
    fn errors_of_the_driver_have_kinds() {
        let refused = DriverError::from(std::io::ErrorKind::ConnectionRefused);
        let error = failed(refused, "mongodb://host/data/rank-0/set-0/object-1");
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.context().starts_with("mongodb://host/data/rank-0/set-0/object-1: "));
    }
}

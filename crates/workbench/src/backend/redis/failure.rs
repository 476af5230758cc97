// SPDX-License-Identifier: Apache-2.0
//! Failure: errors of the driver and of the server as errors of Esker.

use esker_base::{Error, Kind};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The error for `error`, met on `what`.
pub(super) fn failed(error: &RedisError, what: impl std::fmt::Display) -> Error {
    let kind = kind_of(error.kind(), error.code());
    let said = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => {
            format!("the server says {code} {}", detail.trim_end_matches('.'))
        }
        _ => error.to_string(),
    };
    let is_login = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    let next = match is_login {
        true => "; set REDIS_PASSWORD, and name the user in the URL unless it is the default one",
        false => "",
    };
    Error::new(kind, format!("{what}: {said}{next}"))
}

/// The kind of an error; `code` is the first word of what the server said.
fn kind_of(kind: ErrorKind, code: Option<&str>) -> Kind {
    match kind {
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            Kind::Denied
        }
        ErrorKind::InvalidClientConfig => Kind::Invalid,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Kind::Corrupt,
        ErrorKind::Server(ServerErrorKind::ReadOnly) => Kind::ReadOnly,
        // A server of a cluster.
        ErrorKind::Server(
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot,
        )
        | ErrorKind::RESP3NotSupported => Kind::Unsupported,
        ErrorKind::Server(ServerErrorKind::ResponseError) | ErrorKind::Extension => match code {
            Some("NOAUTH" | "WRONGPASS" | "DENIED") => Kind::Denied,
            Some("OOM") => Kind::NoSpace,
            // The server cannot write to its disk.
            Some("MISCONF") => Kind::DeviceFailed,
            Some("NOREPLICAS") => Kind::Unavailable,
            Some("WRONGTYPE") => Kind::Corrupt,
            _ => Kind::Invalid,
        },
        // Connections, servers that start, and the choice of a server.
        _ => Kind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kinds() {
        for (kind, code, expected) in [
            (ErrorKind::Extension, Some("OOM"), Kind::NoSpace),
            (ErrorKind::Extension, Some("WRONGTYPE"), Kind::Corrupt),
            (ErrorKind::Extension, Some("NOAUTH"), Kind::Denied),
            (ErrorKind::Extension, Some("OTHER"), Kind::Invalid),
            (ErrorKind::AuthenticationFailed, None, Kind::Denied),
            (ErrorKind::Server(ServerErrorKind::Moved), Some("MOVED"), Kind::Unsupported),
            (ErrorKind::Server(ServerErrorKind::BusyLoading), Some("LOADING"), Kind::Unavailable),
            (ErrorKind::Io, None, Kind::Unavailable),
        ] {
            assert_eq!(kind_of(kind, code), expected, "{kind:?} {code:?}");
        }
        let refused = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let error = failed(&refused, "redis://host/0/rank-0/set-0/object-1");
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.context().starts_with("redis://host/0/rank-0/set-0/object-1: "));
        let locked = redis::parse_redis_value(b"-NOAUTH Authentication required.\r\n");
        let locked = locked.and_then(redis::Value::extract_error).expect_err("an error");
        let error = failed(&locked, "redis://host/0");
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        let said =
            "redis://host/0: the server says NOAUTH Authentication required; set REDIS_PASSWORD";
        assert!(error.context().starts_with(said), "{error}");
    }
}

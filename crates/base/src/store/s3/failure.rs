// SPDX-License-Identifier: Apache-2.0
//! Failures of S3 requests, as errors that name the object and say what to do next.

use object_store::Error as S3Error;

use super::credential_process::NO_KEYS;
use crate::{Error, Kind};

/// Maximum characters quoted of a server's answer, which may be pages long.
const CAUSE_CHARS_MAX: usize = 300;

/// Returns the error for an `action` on `place` in `bucket` that failed with `error`.
pub(super) fn failed(action: &str, place: &str, bucket: &str, error: S3Error) -> Error {
    let no_bucket =
        format!("does the bucket {bucket} exist? make it first, or check AWS_ENDPOINT_URL");
    let cause = error.to_string();
    let (kind, advice) = match &error {
        S3Error::NotFound { .. } if action == "get" => {
            (Kind::NotFound, "no such object in this store".to_owned())
        }
        S3Error::NotFound { .. } if cause.contains("NoSuchUpload") => {
            (Kind::Unavailable, "the unfinished upload was removed: write it again".to_owned())
        }
        S3Error::NotFound { .. } if ["list", "delete"].contains(&action) => {
            // Not `NotFound`, which would mean that an object is absent.
            (Kind::Unavailable, no_bucket)
        }
        S3Error::NotFound { .. } => (Kind::NotFound, no_bucket),
        S3Error::PermissionDenied { .. } | S3Error::Unauthenticated { .. } => denied(),
        S3Error::NotSupported { .. } | S3Error::NotImplemented { .. } => (
            Kind::Invalid,
            "the server lacks what Esker requires: use one with conditional writes".to_owned(),
        ),
        S3Error::InvalidPath { .. } => (Kind::Invalid, "not a valid key".to_owned()),
        error if is_refusal(error) => {
            (Kind::Conflict, "another process wrote it as well: read it again".to_owned())
        }
        _ if cause.contains(NO_KEYS) => {
            (Kind::Denied, "the key source of the profile gave no keys: run it by hand".into())
        }
        _ if lacks_keys(&cause) => (
            Kind::Denied,
            "no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE".to_owned(),
        ),
        _ if is_of_token(&cause) => {
            (Kind::Denied, "the session token is not valid any more: get new keys".to_owned())
        }
        // Errors of listings and deletions come without their status.
        _ => match status_of(&cause) {
            Some(401 | 403) => denied(),
            Some(404) => (Kind::Unavailable, no_bucket),
            Some(301 | 307 | 400) => {
                (Kind::Invalid, "check AWS_REGION, AWS_ENDPOINT_URL and the keys".to_owned())
            }
            _ if cause.contains("(code: AccessDenied)") => denied(),
            _ => (Kind::Unavailable, "check AWS_ENDPOINT_URL and the server, and retry".to_owned()),
        },
    };
    let said = said_by_server(&cause);
    let cause: String = said.unwrap_or(cause).chars().take(CAUSE_CHARS_MAX).collect();
    Error::new(kind, format!("{action} {place}: {advice}")).with_source(cause)
}

fn denied() -> (Kind, String) {
    (Kind::Denied, "check AWS_ACCESS_KEY_ID and the policy of the bucket".to_owned())
}

/// Returns whether no keys were given and the machine has no role that provides them.
fn lacks_keys(cause: &str) -> bool {
    cause.contains("/latest/api/token") || cause.contains("/latest/meta-data/iam/")
}

/// Returns whether the server refused the session token that came with temporary keys. It answers
/// 400, as for a wrong region.
fn is_of_token(cause: &str) -> bool {
    let codes = ["InvalidToken", "ExpiredToken", "TokenRefreshRequired"];
    codes.iter().any(|code| cause.contains(&format!("<Code>{code}</Code>")))
}

/// Returns the status of the server's answer, which the client reports only in words.
fn status_of(cause: &str) -> Option<u16> {
    if cause.contains("Received redirect") {
        return Some(301);
    }
    let (_, rest) = cause.split_once("non-2xx status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Returns `CODE: MESSAGE` from the XML of an answer.
fn said_by_server(cause: &str) -> Option<String> {
    let element = |name: &str| {
        let (_, rest) = cause.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0)
    };
    let code = element("Code")?;
    let message = element("Message").unwrap_or_default();
    Some(format!("the server says {code}: {message}"))
}

/// Returns whether the server refused a conditional write because of its condition. S3 answers 409
/// instead of 412 while another write of the same key is under way.
pub(super) fn is_refusal(error: &S3Error) -> bool {
    matches!(
        error,
        S3Error::AlreadyExists { .. } | S3Error::Precondition { .. } | S3Error::NotModified { .. }
    )
}

/// Returns whether the same request may succeed if it is retried: it was lost on the way, cut off
/// or failed by the server, or it is a write refused because of another that was under way and may
/// have failed.
pub(super) fn is_transient(error: &S3Error) -> bool {
    let S3Error::Generic { .. } = error else { return is_refusal(error) };
    let cause = error.to_string();
    match status_of(&cause) {
        Some(408 | 429) => true,
        Some(400..500) => cause.contains("<Code>RequestTimeout</Code>"),
        Some(300..400) => false,
        _ => {
            !lacks_keys(&cause)
                && !cause.contains(NO_KEYS)
                && !cause.contains("(code: AccessDenied)")
        }
    }
}

/// Returns whether a deletion failed because the object is gone.
pub(super) fn is_deleted(error: &S3Error) -> bool {
    // The answer to a deletion of many has a code for each, which the client reports only in words.
    error.to_string().contains("(code: NoSuchKey)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_deletion_is_done() {
        let failed = |cause: &str| S3Error::Generic { store: "S3", source: cause.into() };
        assert!(is_deleted(&failed("deletion of p failed: gone (code: NoSuchKey)")));
        assert!(!is_deleted(&failed("deletion of p failed: no (code: AccessDenied)")));
    }

    #[test]
    fn errors_have_kind_place_and_advice() {
        let source = || "cause".into();
        let path = || "p".to_owned();
        for (error, kind, word) in [
            (S3Error::NotFound { path: path(), source: source() }, Kind::NotFound, "bucket b"),
            (
                S3Error::PermissionDenied { path: path(), source: source() },
                Kind::Denied,
                "AWS_ACCESS_KEY_ID",
            ),
            (S3Error::NotSupported { source: source() }, Kind::Invalid, "conditional"),
            (S3Error::Precondition { path: path(), source: source() }, Kind::Conflict, "again"),
            (
                S3Error::Generic {
                    store: "S3",
                    source: "non-2xx status code: 400: <Code>ExpiredToken</Code>".into(),
                },
                Kind::Denied,
                "new keys",
            ),
            (S3Error::Generic { store: "S3", source: source() }, Kind::Unavailable, "retry"),
        ] {
            let error = failed("put", "s3://b/x", "b", error);
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            assert!(text.starts_with("put s3://b/x") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn statuses_in_words_are_understood() {
        let status = "Error performing list request: Server returned non-2xx status code: ";
        let generic = |what: String| S3Error::Generic { store: "S3", source: what.into() };
        for (what, kind, word, is_passing) in [
            (
                "403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><Message>Not so.</Message>",
                Kind::Denied,
                "SignatureDoesNotMatch: Not so.",
                false,
            ),
            ("404 Not Found: page not found", Kind::Unavailable, "bucket b", false),
            (
                "400 Bad Request: <Code>AuthorizationHeaderMalformed</Code><Message>expecting \
              'eu-west-1'</Message>",
                Kind::Invalid,
                "expecting 'eu-west-1'",
                false,
            ),
            ("400 Bad Request: <Code>RequestTimeout</Code>", Kind::Invalid, "", true),
            ("503 Service Unavailable: <Code>SlowDown</Code>", Kind::Unavailable, "SlowDown", true),
            ("429 Too Many Requests: ", Kind::Unavailable, "retry", true),
        ] {
            let error = generic(format!("{status}{what}"));
            assert_eq!(is_transient(&error), is_passing, "{what}");
            let error = failed("list", "s3://b/x", "b", error);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
        let no_keys = "Error performing PUT http://169.254.169.254/latest/api/token in 1s";
        assert!(!is_transient(&generic(no_keys.into())));
        let error = failed("get", "s3://b/x", "b", generic(no_keys.into()));
        assert!(error.to_string().contains("AWS_PROFILE"), "{error}");
        assert!(is_transient(&generic("connection closed before message completed".into())));
        assert!(is_deleted(&generic("failed for key a: b (code: NoSuchKey)".into())));
    }
}

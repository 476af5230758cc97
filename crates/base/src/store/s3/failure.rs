//! Failures of S3 requests, as errors that name the object and say what to do next.

use object_store::Error as S3Error;

use crate::{Error, Kind};

/// Servers answer with pages of XML; so many characters of it say what it is.
const CAUSE_CHARS_MAX: usize = 300;

/// The error of `action` on `place` in `bucket` having failed with `error`.
pub(super) fn failed(action: &str, place: &str, bucket: &str, error: S3Error) -> Error {
    let denied =
        || (Kind::Denied, "check AWS_ACCESS_KEY_ID and the policy of the bucket".to_owned());
    let no_bucket = || (Kind::NotFound, format!("is the bucket {bucket} there? make it first"));
    let cause = error.to_string();
    let (kind, advice) = match &error {
        S3Error::NotFound { .. } if action == "get" => {
            (Kind::NotFound, "no such object in this store".to_owned())
        }
        S3Error::NotFound { .. } => no_bucket(),
        S3Error::PermissionDenied { .. } | S3Error::Unauthenticated { .. } => denied(),
        // Listings come without their status.
        S3Error::Generic { .. } if ["401", "403"].iter().any(|code| has_status(&cause, code)) => {
            denied()
        }
        S3Error::Generic { .. } if has_status(&cause, "404") => no_bucket(),
        S3Error::NotSupported { .. } | S3Error::NotImplemented { .. } => (
            Kind::Invalid,
            "the server lacks what Esker needs: use one with conditional writes".to_owned(),
        ),
        S3Error::InvalidPath { .. } => (Kind::Invalid, "no such key can be".to_owned()),
        error if is_refusal(error) => {
            (Kind::Conflict, "somebody else wrote at the same time: look again".to_owned())
        }
        _ => (Kind::Unavailable, "check AWS_ENDPOINT_URL and the server, and retry".to_owned()),
    };
    let cause: String = cause.chars().take(CAUSE_CHARS_MAX).collect();
    Error::new(kind, format!("{action} {place}: {advice}")).with_source(cause)
}

/// Whether the client says, in words only, that the server answered with the status `code`.
fn has_status(cause: &str, code: &str) -> bool {
    cause.contains(&format!("non-2xx status code: {code} "))
}

/// Whether the server refused a conditional write for its condition. S3 answers 409 instead of 412
/// while another write of the same key is under way.
pub(super) fn is_refusal(error: &S3Error) -> bool {
    matches!(
        error,
        S3Error::AlreadyExists { .. } | S3Error::Precondition { .. } | S3Error::NotModified { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (S3Error::Generic { store: "S3", source: source() }, Kind::Unavailable, "retry"),
        ] {
            let error = failed("put", "s3://b/x", "b", error);
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            assert!(text.starts_with("put s3://b/x") && text.contains(word), "{text}");
        }
    }
}

//! `esker exit-codes`: lists the exit codes, like `esker help exit-codes`.

use clap::Args;
use esker_base::{Kind, Result};
use serde_json::json;

use crate::context::Context;

/// Every kind and its meaning to a user.
pub const MEANINGS: &[(Kind, &str)] = &[
    (Kind::NotFound, "no such store, name, change set or file"),
    (Kind::Exists, "the name is taken"),
    (Kind::NotADirectory, "a part of the path is no directory"),
    (Kind::IsADirectory, "it does not work on a directory"),
    (Kind::NotEmpty, "the directory has entries"),
    (Kind::Denied, "permission denied, by mode bits or by the store"),
    (Kind::Conflict, "somebody else changed the same thing: try again"),
    (Kind::Fenced, "another writer took the session over"),
    (Kind::Unavailable, "the store did not answer: try again later"),
    (Kind::Corrupt, "bytes are not what was written: run `esker verify`"),
    (Kind::Invalid, "the request makes no sense; the message says why"),
    (Kind::TooLarge, "a name, value or file over its limit"),
    (Kind::Closed, "an earlier failure closed the session: resume it"),
    (Kind::NoSpace, "no room is left"),
    (Kind::ReadOnly, "the store can only be read"),
    (Kind::NotPermitted, "only the owner or the superuser may do it"),
    (Kind::Loop, "symbolic links lead to each other"),
    (Kind::NoAttribute, "no such extended attribute"),
    (Kind::TooManyLinks, "the file has as many names as it can have"),
    (Kind::FileTooLarge, "a file would be longer than a file can be"),
    (Kind::Unsupported, "nothing here can do it"),
    (Kind::DeviceFailed, "the device under the store failed"),
    (Kind::TooManyOpenFiles, "too many files are open: raise `ulimit -n`"),
];

/// Exit codes that are not kinds of errors.
const OTHERS: &[(u8, &str, &str)] = &[
    (0, "Success", "success"),
    (1, "Differs", "`diff --exit-code` found differences"),
    (2, "Usage", "wrong usage: an unknown option, a missing argument, no store"),
];

/// List exit codes
///
///  0  success
///  1  `diff --exit-code` found differences
///  2  wrong usage: an unknown option, a missing argument, no store
///  3  no such store, name, change set or file
///  4  the name is taken
///  5  a part of the path is no directory
///  6  it does not work on a directory
///  7  the directory has entries
///  8  permission denied, by mode bits or by the store
///  9  somebody else changed the same thing: try again
/// 10  another writer took the session over
/// 11  the store did not answer: try again later
/// 12  bytes are not what was written: run `esker verify`
/// 13  the request makes no sense; the message says why
/// 14  a name, value or file over its limit
/// 15  an earlier failure closed the session: resume it
/// 16  no room is left
/// 17  the store can only be read
/// 18  only the owner or the superuser may do it
/// 19  symbolic links lead to each other
/// 20  no such extended attribute
/// 21  the file has as many names as it can have
/// 22  a file would be longer than a file can be
/// 23  nothing here can do it
/// 24  the device under the store failed
/// 25  too many files are open: raise `ulimit -n`
///
/// An import, export or search that left something out exits with the code of the first problem.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ExitCodes {}

impl ExitCodes {
    /// Lists them.
    pub fn run(self, context: &Context) -> Result<()> {
        let kinds = MEANINGS
            .iter()
            .map(|(kind, meaning)| (kind.exit_code(), format!("{kind:?}"), *meaning));
        let others =
            OTHERS.iter().map(|(code, kind, meaning)| (*code, (*kind).to_owned(), *meaning));
        for (code, kind, meaning) in others.chain(kinds) {
            if context.out.is_json() {
                context.out.json(json!({"code": code, "kind": kind, "meaning": meaning}))?;
            } else {
                context.out.line(format!("{code:>3}  {meaning}"))?;
            }
        }
        Ok(())
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `esker exit-codes`: lists the exit codes, like `esker help exit-codes`.

use clap::Args;
use esker_base::{Kind, Result};
use serde_json::json;

use crate::context::CommandContext;

/// Every kind and its meaning to a user.
pub const MEANINGS: &[(Kind, &str)] = &[
    (Kind::NotFound, "no such store, name, change set or file"),
    (Kind::Exists, "the name is taken"),
    (Kind::NotADirectory, "a part of the path is not a directory"),
    (Kind::IsADirectory, "a directory cannot be used this way"),
    (Kind::NotEmpty, "the directory has entries"),
    (Kind::Denied, "permission denied, by mode bits or by the store"),
    (Kind::Conflict, "somebody else changed the same thing: try again"),
    (Kind::Fenced, "another writer took the session over"),
    (Kind::Unavailable, "the store did not answer: try again later"),
    (Kind::Corrupt, "bytes are not what was written: run `esker verify`"),
    (Kind::Invalid, "the request is invalid; the message says why"),
    (Kind::TooLarge, "a name, value or file over its limit"),
    (Kind::Closed, "an earlier failure closed the session: resume it"),
    (Kind::NoSpace, "no space is left"),
    (Kind::ReadOnly, "the store is read-only"),
    (Kind::NotPermitted, "only the owner or the superuser may do it"),
    (Kind::Loop, "symbolic links form a loop"),
    (Kind::NoAttribute, "no such extended attribute"),
    (Kind::TooManyLinks, "the file has the maximum number of names"),
    (Kind::FileTooLarge, "a file would exceed the maximum file size"),
    (Kind::Unsupported, "the operation is not supported"),
    (Kind::DeviceFailed, "the device under the store failed"),
    (Kind::TooManyOpenFiles, "too many files are open: raise `ulimit -n`"),
    (Kind::CrossDevice, "nothing is moved or linked between these places: copy instead"),
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
///  5  a part of the path is not a directory
///  6  a directory cannot be used this way
///  7  the directory has entries
///  8  permission denied, by mode bits or by the store
///  9  somebody else changed the same thing: try again
/// 10  another writer took the session over
/// 11  the store did not answer: try again later
/// 12  bytes are not what was written: run `esker verify`
/// 13  the request is invalid; the message says why
/// 14  a name, value or file over its limit
/// 15  an earlier failure closed the session: resume it
/// 16  no space is left
/// 17  the store is read-only
/// 18  only the owner or the superuser may do it
/// 19  symbolic links form a loop
/// 20  no such extended attribute
/// 21  the file has the maximum number of names
/// 22  a file would exceed the maximum file size
/// 23  the operation is not supported
/// 24  the device under the store failed
/// 25  too many files are open: raise `ulimit -n`
///
/// An import, export or search that left something out exits with the code of the first problem.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ExitCodes {}

impl ExitCodes {
    /// Lists them.
    pub fn run(self, context: &CommandContext) -> Result<()> {
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

// SPDX-License-Identifier: Apache-2.0
//! Writers: the current or last writer of a session, for people and for programs.

use esker_fs::session::hold::{HolderState, WriterHold};
use esker_table::set_writer::SetWriter;
use serde_json::{Value, json};

use crate::text;

/// A writer as JSON; docs/guide/command.md describes it.
pub fn object(hold: Option<&WriterHold>) -> Value {
    let Some(hold) = hold else { return Value::Null };
    let (writer, process) = (&hold.writer, &hold.writer.process);
    json!({
        "state": state(hold),
        "user": writer.user,
        "host": process.host,
        "pid": process.pid,
        "command": writer.command,
        "began_ns": writer.began_ns,
        "seen_ns": hold.seen_ns,
        "is_writing": writer.is_writing,
        "is_private": writer.is_private,
    })
}

/// The writer's state, in a word.
pub fn state(hold: &WriterHold) -> &'static str {
    match hold.state {
        HolderState::Alive => "alive",
        HolderState::Released => "released",
        HolderState::Ended => "ended",
        HolderState::Silent => "silent",
    }
}

/// The author of a complete set.
pub fn author(writer: &SetWriter) -> String {
    let command = text::printable(writer.command.as_bytes());
    format!("{}: {command}", user_and_host(writer))
}

/// A writer's user and host.
fn user_and_host(writer: &SetWriter) -> String {
    text::printable(format!("{}@{}", writer.user, writer.process.host).as_bytes())
}

/// A writer on one line.
pub fn line(hold: &WriterHold, now_ns: u64) -> String {
    let process = &hold.writer.process;
    let who = user_and_host(&hold.writer);
    let age = text::age(now_ns.saturating_sub(hold.seen_ns));
    let command = text::printable(hold.writer.command.as_bytes());
    match hold.state {
        HolderState::Alive => {
            format!("written by {who}, process {}, seen {age} ago: {command}", process.pid)
        }
        HolderState::Released => format!("left {age} ago by {who}: {command}"),
        HolderState::Ended => {
            let pid = process.pid;
            format!(
                "left {age} ago by {who}, process {pid}, which ended without releasing it: {command}"
            )
        }
        HolderState::Silent => {
            format!("not seen for {age}: {who}, process {}: {command}", process.pid)
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Set writer: the process that writes a change set, or wrote it last, as its manifest records it.
//!
//! Layout: docs/format/manifest.md. This file is its only encoder and decoder.
//! The record plays no part in durability: a writer that takes over fences the old one regardless.
//! It informs people, and writers that prefer not to fence one that is still working.

use std::fmt;

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_base::{ProcessIdentity, without_password};

/// A text about a writer takes at most this many bytes; longer ones are cut.
pub const WRITER_TEXT_BYTES_MAX: usize = 1 << 10;

/// Set if a writer is recorded; a flags byte of 0 means there is none.
const PRESENT: u8 = 1;
/// The writer is writing, unless it died.
const WRITING: u8 = 2;
/// The set is of no use without this writer.
const PRIVATE: u8 = 4;

/// A writer of a change set.
///
/// ```
/// use esker_table::tree::Heartbeat;
///
/// // As it is recorded in the manifest while it writes, and after it has ended in order.
/// let writing = Heartbeat::of_process("ada").writer.beginning(1_700_000_000_000_000_000);
/// assert!(writing.is_writing && writing.to_string().contains("of ada on "));
/// assert!(!writing.released().is_writing);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetWriter {
    /// Its process.
    pub process: ProcessIdentity,
    /// The user that runs it.
    pub user: String,
    /// Its command line.
    pub command: String,
    /// When it opened the set, in nanoseconds since the Unix epoch.
    pub began_ns: u64,
    /// False once the writer has ended in order; a writer that died leaves it true.
    pub is_writing: bool,
    /// True while the set is of no use to others: one command began it for itself, and nobody
    /// resumes it if that command dies.
    pub is_private: bool,
}

impl SetWriter {
    /// This process, run by `user`, with its command line.
    #[must_use]
    pub(crate) fn of_process(user: impl Into<String>) -> Self {
        let arguments: Vec<String> =
            std::env::args_os().map(|word| without_password(&word.to_string_lossy())).collect();
        Self {
            process: ProcessIdentity::current(),
            user: user.into(),
            command: arguments.join(" "),
            began_ns: 0,
            is_writing: false,
            is_private: false,
        }
    }

    /// Returns this writer as it opens a set at `now_ns`, with its texts cut to fit into a
    /// manifest.
    #[must_use]
    pub fn beginning(&self, now_ns: u64) -> Self {
        let mut writer = Self { began_ns: now_ns, is_writing: true, ..self.clone() };
        for text in writer.texts_mut() {
            while text.len() > WRITER_TEXT_BYTES_MAX {
                text.pop();
            }
        }
        writer
    }

    /// Returns this writer after it has ended in order: others may resume the set.
    #[must_use]
    pub fn released(self) -> Self {
        Self { is_writing: false, is_private: false, ..self }
    }

    fn texts(&self) -> [&String; 4] {
        [&self.process.host, &self.process.boot, &self.user, &self.command]
    }

    fn texts_mut(&mut self) -> [&mut String; 4] {
        [&mut self.process.host, &mut self.process.boot, &mut self.user, &mut self.command]
    }

    /// Returns whether a manifest may hold it.
    pub(crate) fn is_within_bounds(&self) -> bool {
        self.texts().iter().all(|text| text.len() <= WRITER_TEXT_BYTES_MAX)
    }
}

/// The text by which errors name it: `"esker put - @3f2a:/x" (process 12 of ada on node7)`.
impl fmt::Display for SetWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, user, command, .. } = self;
        // Another process wrote these texts, and they may reach a terminal.
        let (user, host) = (user.escape_debug(), process.host.escape_debug());
        write!(f, "{command:?} (process {} of {user} on {host})", process.pid)
    }
}

/// Appends `writer`, or a marker that there is none.
pub(crate) fn encode(writer: Option<&SetWriter>, out: &mut Vec<u8>) {
    let Some(writer) = writer else { return out.push(0) };
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    out.push(PRESENT | flag(writer.is_writing, WRITING) | flag(writer.is_private, PRIVATE));
    writer.texts().iter().for_each(|text| put_bytes(out, text.as_bytes()));
    let process = &writer.process;
    let numbers =
        [process.pid_namespace, u64::from(process.pid), process.started_ticks, writer.began_ns];
    numbers.into_iter().for_each(|number| put_varint(out, number));
}

/// The inverse of [`encode`].
pub(crate) fn decode(input: &mut WireInput) -> Result<Option<SetWriter>, WireDamage> {
    let flags = input.u8()?;
    if flags == 0 {
        return Ok(None);
    }
    if flags & PRESENT == 0 || flags > (PRESENT | WRITING | PRIVATE) {
        return Err(input.damage("known flags of a writer"));
    }
    let mut writer = SetWriter {
        is_writing: flags & WRITING != 0,
        is_private: flags & PRIVATE != 0,
        ..SetWriter::default()
    };
    for text in writer.texts_mut() {
        let bytes = input.bytes(WRITER_TEXT_BYTES_MAX, "a writer's text within bounds")?;
        *text = String::from_utf8(bytes.to_vec()).map_err(|_| input.damage("UTF-8 text"))?;
    }
    writer.process.pid_namespace = input.varint()?;
    let pid = input.varint()?;
    writer.process.pid = u32::try_from(pid).map_err(|_| input.damage("a process number"))?;
    writer.process.started_ticks = input.varint()?;
    writer.began_ns = input.varint()?;
    Ok(Some(writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> SetWriter {
        let process = ProcessIdentity {
            host: "node7".into(),
            boot: "c0ffee".into(),
            pid_namespace: 4_026_531_836,
            pid: 12,
            started_ticks: 777,
        };
        let (user, command) = ("ada".into(), "esker mount --write é /mnt".into());
        SetWriter { process, user, command, began_ns: 9, is_writing: true, is_private: false }
    }

    #[test]
    fn whatever_is_encoded_is_decoded() {
        let ended = SetWriter { is_writing: false, ..writer() };
        let private = SetWriter { is_private: true, ..writer() };
        for expected in
            [None, Some(writer()), Some(ended), Some(private), Some(SetWriter::default())]
        {
            let mut bytes = Vec::new();
            encode(expected.as_ref(), &mut bytes);
            let mut input = WireInput::new(&bytes);
            assert_eq!(decode(&mut input), Ok(expected));
            assert_eq!(input.left(), 0);
            for cut in 0..bytes.len() {
                assert!(decode(&mut WireInput::new(&bytes[..cut])).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_no_writer_is_is_refused() {
        let mut bytes = Vec::new();
        encode(Some(&writer()), &mut bytes);
        let texts: usize = 1 + writer().texts().iter().map(|text| 1 + text.len()).sum::<usize>();
        let mut wide_pid = bytes[..texts + 5].to_vec();
        [0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0].iter().for_each(|byte| wide_pid.push(*byte));
        let no_text = [&[PRESENT | WRITING, 1, 0xff][..], &bytes[2..]].concat();
        let flags = |flags: u8| [&[flags][..], &bytes[1..]].concat();
        for wrong in [flags(2), flags(8), flags(9), wide_pid, no_text] {
            assert!(decode(&mut WireInput::new(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_description_moves_no_cursor() {
        let mut hostile = writer();
        hostile.texts_mut().into_iter().for_each(|text| text.push_str("\x1b[2J\n"));
        let description = hostile.to_string();
        assert!(!description.contains(char::is_control), "{description:?}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = SetWriter { command: "é".repeat(WRITER_TEXT_BYTES_MAX), ..writer() };
        assert!(!long.is_within_bounds());
        let begun = long.beginning(5);
        assert!(begun.is_within_bounds() && begun.is_writing && begun.began_ns == 5);
        assert_eq!(begun.command.len(), WRITER_TEXT_BYTES_MAX);
        assert_eq!(begun.user, "ada");
    }
}

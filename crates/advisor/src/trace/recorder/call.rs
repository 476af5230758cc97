// SPDX-License-Identifier: Apache-2.0
//! Call: one call of a rank, as Recorder kept it.

/// A call. In the text of `recorder2text`, a path with blanks is several arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct RecorderCall<'a> {
    /// When the call began, since the beginning of the job.
    pub begin_ns: u64,
    /// When it returned.
    pub end_ns: u64,
    /// The number that it returned; version 3 does not say.
    pub result: Option<i64>,
    /// The name.
    pub function: &'a str,
    /// The arguments.
    pub arguments: Vec<&'a str>,
}

impl RecorderCall<'_> {
    /// The number that is `from_end` arguments before the last one.
    pub fn number(&self, from_end: usize) -> Option<i64> {
        let index = self.arguments.len().checked_sub(from_end + 1)?;
        self.arguments[index].parse().ok()
    }

    /// The path that consists of the arguments without the first `before` and the last `after`.
    pub fn path(&self, before: usize, after: usize) -> Option<String> {
        let end = self.arguments.len().checked_sub(after)?;
        let path = self.arguments.get(before..end)?.join(" ");
        (!path.is_empty()).then_some(path)
    }
}

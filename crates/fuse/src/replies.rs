// SPDX-License-Identifier: Apache-2.0
//! Replies: results in the forms of the FUSE library, and its arguments in those of this crate.

use std::time::{Duration, UNIX_EPOCH};

use esker_fs::inode::{FileKind, Inode, NameKind};
use esker_fuse_ring::NewTime;
use fuser::{
    Errno, FileAttr, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyXattr, Request, TimeOrNow,
};

use crate::attributes::ListedAttributes;

/// Inode numbers are never reused, so there is one generation.
pub(crate) const GENERATION: Generation = Generation(0);

/// Replies with the attributes of an entry, which the kernel may keep for `ttl`.
pub(crate) fn entry(reply: ReplyEntry, ttl: &Duration, found: Result<FileAttr, Errno>) {
    match found {
        Ok(attr) => reply.entry(ttl, &attr, GENERATION),
        Err(errno) => reply.error(errno),
    }
}

/// Replies with attributes, which the kernel may keep for `ttl`.
pub(crate) fn attributes(reply: ReplyAttr, ttl: &Duration, found: Result<FileAttr, Errno>) {
    match found {
        Ok(attr) => reply.attr(ttl, &attr),
        Err(errno) => reply.error(errno),
    }
}

/// Replies that a request is done, or with its error.
pub(crate) fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Replies with `value`, or with its size if the kernel asks only for that.
pub(crate) fn value(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

/// Converts a time from the FUSE library, which for times before 1970 subtracts the nanoseconds
/// that it should add to the seconds.
pub(crate) fn new_time(time: TimeOrNow) -> NewTime {
    let seconds = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    let TimeOrNow::SpecificTime(time) = time else { return NewTime::Now };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => NewTime::At(seconds(since.as_secs()), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            NewTime::At(-seconds(before.as_secs()), before.subsec_nanos())
        }
    }
}

/// True if writes by the user of `request` remove set-id bits.
pub(crate) fn drops_set_id(request: &Request) -> bool {
    request.uid() != 0
}

/// Attributes of which the kernel reads only number and kind.
pub(crate) fn dot(number: u64, kind: FileKind) -> FileAttr {
    ListedAttributes::from(&Inode::new(NameKind::Is(kind), 0o755, 0)).file_attr(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_what_the_kernel_sent() {
        let new_time = |time| new_time(TimeOrNow::SpecificTime(time));
        // As the FUSE library passes on -2 seconds and 300 nanoseconds.
        assert_eq!(new_time(UNIX_EPOCH - Duration::new(2, 300)), NewTime::At(-2, 300));
        assert_eq!(new_time(UNIX_EPOCH + Duration::new(2, 300)), NewTime::At(2, 300));
        let far = 1 << 40;
        assert_eq!(new_time(UNIX_EPOCH + Duration::from_secs(far)), NewTime::At(1 << 40, 0));
    }
}

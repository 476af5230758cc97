// SPDX-License-Identifier: Apache-2.0
//! Statistics: the number of requests of each kind that the kernel has sent.
//!
//! Names are those of the protocol. Counters are relaxed: each is exact, but they are not of one
//! moment.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_fuse_ring::Operation;
use serde_json::{Map, Value};

/// Declares the kinds and their names.
macro_rules! request_kinds {
    ($($kind:ident = $name:literal),* $(,)?) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum RequestKind { $($kind),* }

        const NAMES: &[&str] = &[$($name),*];
    };
}

request_kinds! {
    LookUp = "lookup",
    Forget = "forget",
    GetAttr = "getattr",
    SetAttr = "setattr",
    ReadLink = "readlink",
    SymLink = "symlink",
    MkNod = "mknod",
    MkDir = "mkdir",
    Unlink = "unlink",
    RmDir = "rmdir",
    Rename = "rename",
    Link = "link",
    Open = "open",
    Create = "create",
    Read = "read",
    Write = "write",
    StatFs = "statfs",
    Release = "release",
    Fsync = "fsync",
    Flush = "flush",
    OpenDir = "opendir",
    ReadDir = "readdir",
    ReadDirPlus = "readdirplus",
    ReleaseDir = "releasedir",
    FsyncDir = "fsyncdir",
    SetXattr = "setxattr",
    GetXattr = "getxattr",
    ListXattr = "listxattr",
    RemoveXattr = "removexattr",
    Fallocate = "fallocate",
    Lseek = "lseek",
    CopyFileRange = "copy_file_range",
    Other = "other",
}

/// Counters of requests, by kind.
#[derive(Debug)]
pub(crate) struct RequestStatistics([AtomicU64; NAMES.len()]);

impl Default for RequestStatistics {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RequestStatistics {
    pub(crate) fn count(&self, kind: RequestKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The kinds of requests that came, with their numbers.
    pub(crate) fn report(&self) -> Value {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let any = NAMES.iter().zip(counts).filter(|(_, count)| *count > 0);
        let report: Map<String, Value> =
            any.map(|(name, count)| ((*name).to_owned(), count.into())).collect();
        report.into()
    }
}

impl RequestKind {
    /// The kind of a request that came through a ring.
    pub(crate) fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::ReadDir { with_attributes: true, .. } => Self::ReadDirPlus,
            Operation::Ioctl { .. } | Operation::Unknown(_) => Self::Other,
            Operation::LookUp { .. } => Self::LookUp,
            Operation::GetAttr { .. } => Self::GetAttr,
            Operation::SetAttr { .. } => Self::SetAttr,
            Operation::ReadLink { .. } => Self::ReadLink,
            Operation::SymLink { .. } => Self::SymLink,
            Operation::MkNod { .. } => Self::MkNod,
            Operation::MkDir { .. } => Self::MkDir,
            Operation::Unlink { .. } => Self::Unlink,
            Operation::RmDir { .. } => Self::RmDir,
            Operation::Rename { .. } => Self::Rename,
            Operation::Link { .. } => Self::Link,
            Operation::Open { .. } => Self::Open,
            Operation::Create { .. } => Self::Create,
            Operation::Read { .. } => Self::Read,
            Operation::Write { .. } => Self::Write,
            Operation::StatFs { .. } => Self::StatFs,
            Operation::Release { .. } => Self::Release,
            Operation::Fsync { .. } => Self::Fsync,
            Operation::Flush { .. } => Self::Flush,
            Operation::OpenDir { .. } => Self::OpenDir,
            Operation::ReadDir { .. } => Self::ReadDir,
            Operation::ReleaseDir { .. } => Self::ReleaseDir,
            Operation::FsyncDir { .. } => Self::FsyncDir,
            Operation::SetXattr { .. } => Self::SetXattr,
            Operation::GetXattr { .. } => Self::GetXattr,
            Operation::ListXattr { .. } => Self::ListXattr,
            Operation::RemoveXattr { .. } => Self::RemoveXattr,
            Operation::Fallocate { .. } => Self::Fallocate,
            Operation::Lseek { .. } => Self::Lseek,
            Operation::CopyFileRange { .. } => Self::CopyFileRange,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_kinds_that_came() {
        let statistics = RequestStatistics::default();
        statistics.count(RequestKind::of(&Operation::GetAttr));
        statistics.count(RequestKind::of(&Operation::LookUp { name: b"a" }));
        statistics.count(RequestKind::LookUp);
        assert_eq!(statistics.report(), serde_json::json!({"getattr": 1, "lookup": 2}));
        assert_eq!(NAMES[RequestKind::Other as usize], "other");
    }
}

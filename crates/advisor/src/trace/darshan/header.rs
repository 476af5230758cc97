// SPDX-License-Identifier: Apache-2.0
//! Header: the beginning of a Darshan log, which has the positions of everything else.
//!
//! ```text
//! version text[8] | magic u64 | compression u8, padded | partial flags u32 or u64
//! names: offset u64, length u64 | module 0: offset u64, length u64 | …
//! version of module 0 u32 | …
//! ```
//! Logs have 16 modules before version 3.41 of the format and 64 from it on; both 3.20 and 3.41
//! renumbered the modules. The job follows the header and ends where the names begin. Source:
//! darshan-hpc/darshan, include/darshan-log-format.h.

use esker_base::{Error, Kind, Result};

const MAGIC: u64 = 6_567_223;

/// Longest version.
const VERSION_BYTES: usize = 8;

/// The compression of a log's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DarshanCompression {
    /// Streams of zlib, one after the other.
    Zlib,
    /// As they are.
    None,
}

/// Bytes of a log from `at` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRegion {
    /// The first byte.
    pub at: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The modules that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DarshanModule {
    /// Counters of POSIX calls.
    Posix,
    /// Counters of MPI-IO.
    MpiIo,
    /// Counters of streams.
    Stdio,
    /// Each read and write of POSIX.
    ExtendedPosix,
    /// Each read and write of MPI-IO.
    ExtendedMpiIo,
}

impl DarshanModule {
    /// The number of the module in a log.
    fn number(self, version: u32) -> usize {
        // 3.20 put the datasets of HDF5 after its files, and 3.41 the variables of PnetCDF.
        let later = usize::from(version >= 320) + usize::from(version >= 341);
        match self {
            Self::Posix => 1,
            Self::MpiIo => 2,
            Self::Stdio => 7 + later,
            Self::ExtendedPosix => 8 + later,
            Self::ExtendedMpiIo => 9 + later,
        }
    }

    /// The word in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Posix => "POSIX",
            Self::MpiIo => "MPI-IO",
            Self::Stdio => "STDIO",
            Self::ExtendedPosix => "DXT_POSIX",
            Self::ExtendedMpiIo => "DXT_MPIIO",
        }
    }
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// The version of the format times 100: 321 for 3.21.
    pub version: u32,
    /// The compression of regions.
    pub compression: DarshanCompression,
    /// The job.
    pub job: LogRegion,
    /// The names of files.
    pub names: LogRegion,
    modules: Vec<(LogRegion, u32)>,
}

impl LogHeader {
    /// Parses the header of `log`.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not a log; `Invalid` for logs of other versions, in the other
    /// byte order, or compressed by bzip2.
    pub fn parse(log: &[u8], object: &str) -> Result<Self> {
        let corrupt = |at: usize, what: String| Error::corrupt(object, at as u64, what);
        let invalid = |what: String| Error::new(Kind::Invalid, format!("{object}: {what}"));
        let mut fields = HeaderFields { log, at: 0 };
        let short = |at: usize| corrupt(at, "the header of a Darshan log is truncated".to_owned());
        let text = fields.take::<VERSION_BYTES>().ok_or_else(|| short(0))?;
        let magic = fields.u64().ok_or_else(|| short(8))?;
        if magic.swap_bytes() == MAGIC {
            return Err(invalid(
                "the log was written in the other byte order; convert it with \
                                `darshan-convert` where it was written"
                    .to_owned(),
            ));
        }
        if magic != MAGIC {
            return Err(corrupt(8, format!("no Darshan log: expected {MAGIC}, found {magic}")));
        }
        let version = version_of(&text).ok_or_else(|| corrupt(0, "no version".to_owned()))?;
        if !(300..400).contains(&version) {
            let shown = String::from_utf8_lossy(&text);
            let shown = shown.trim_end_matches('\0').escape_debug();
            return Err(invalid(format!("version {shown} of the format; versions 3 are read")));
        }
        let (modules, flag_bytes) = if version >= 341 { (64, 8) } else { (16, 4) };
        let compression = fields.take::<1>().ok_or_else(|| short(16))?[0];
        let compression = match compression {
            0 => DarshanCompression::Zlib,
            2 => DarshanCompression::None,
            1 => {
                let what = "the log is compressed by bzip2; convert it with `darshan-convert`";
                return Err(invalid(what.to_owned()));
            }
            other => return Err(corrupt(16, format!("compression {other}"))),
        };
        // The flags lie at a multiple of their width.
        fields.at = 16 + 2 * flag_bytes;
        let names = fields.region().ok_or_else(|| short(fields.at))?;
        let mut regions = Vec::with_capacity(modules);
        for _ in 0..modules {
            regions.push(fields.region().ok_or_else(|| short(fields.at))?);
        }
        let mut versions = Vec::with_capacity(modules);
        for _ in 0..modules {
            versions.push(u32::from_le_bytes(fields.take::<4>().ok_or_else(|| short(fields.at))?));
        }
        let header_bytes = fields.at as u64;
        for region in regions.iter().chain([&names]).filter(|region| region.bytes > 0) {
            let end = region.at.checked_add(region.bytes);
            if region.at < header_bytes || end.is_none_or(|end| end > log.len() as u64) {
                let what = format!("a region at {}, of {} bytes", region.at, region.bytes);
                let what = format!("{what}; the log has {} bytes: it is truncated", log.len());
                return Err(corrupt(16 + 2 * flag_bytes, what));
            }
        }
        if names.at < header_bytes {
            return Err(corrupt(16 + 2 * flag_bytes, format!("names at {}", names.at)));
        }
        let job =
            LogRegion { at: header_bytes, bytes: names.at.min(log.len() as u64) - header_bytes };
        let modules = regions.into_iter().zip(versions).collect();
        Ok(Self { version, compression, job, names, modules })
    }

    /// The region of a module and the version of its records; `None` if the log has none.
    pub fn module(&self, module: DarshanModule) -> Option<(LogRegion, u32)> {
        let found = self.modules.get(module.number(self.version)).copied();
        found.filter(|(region, _)| region.bytes > 0)
    }
}

/// 321 for `3.21`.
fn version_of(text: &[u8; VERSION_BYTES]) -> Option<u32> {
    let [major, b'.', minor, patch, 0, ..] = text else { return None };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
    Some(100 * digit(major)? + 10 * digit(minor)? + digit(patch)?)
}

struct HeaderFields<'a> {
    log: &'a [u8],
    at: usize,
}

impl HeaderFields<'_> {
    fn take<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let found = self.log.get(self.at..)?.first_chunk::<BYTES>()?;
        self.at += BYTES;
        Some(*found)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn region(&mut self) -> Option<LogRegion> {
        Some(LogRegion { at: self.u64()?, bytes: self.u64()? })
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Replay: ranks write shared files like a given program, read them back, and compare every byte.
//!
//! Bytes are a function of the file and the offset, so overlapping lines of a trace agree, and a
//! reader knows the expected bytes. Times are those of all ranks together, from one barrier to the
//! next, including generating and comparing the bytes.

use std::fmt;

use esker_base::{Bytes, Error, Kind, Random, Result};
use esker_comm::{Channel, Rank, Transport};
use esker_fs::file::FILE_BYTES_MAX;
use esker_fs::job::JobId;
use esker_fs::repository::Repository;
use esker_fs::stack::namespace::FollowLinks;
use esker_shared::{SharedFile, SharedJob, SharedOptions};
use esker_table::manifest::SetId;
use serde::Serialize;

use crate::report::counted;

/// The channel on which rank 0 sends the job's id.
const AGREE: Channel = Channel(0x21);

/// Most bytes of one line of a trace.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 30;

/// One write of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedTransfer {
    /// The rank.
    pub rank: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// The writes of all ranks.
#[derive(Clone, Debug)]
pub enum ReplayedWork {
    /// As in IOR: segments, each with one block per rank, written in transfers.
    Blocks {
        /// Bytes of a transfer.
        transfer_bytes: u64,
        /// Bytes of a block, a multiple of `transfer_bytes`.
        block_bytes: u64,
        /// Number of segments.
        segments: u64,
        /// True if the transfers of the ranks alternate within a segment; otherwise each rank's
        /// block is contiguous.
        is_strided: bool,
    },
    /// The lines of a trace, in order.
    Trace(Vec<ReplayedTransfer>),
}

/// Parameters of a replay.
#[derive(Clone, Debug)]
pub struct TraceReplay {
    /// The writes.
    pub work: ReplayedWork,
    /// True if each rank has its own file, distinguished by a number in its name.
    pub file_per_process: bool,
    /// Path of the file; with several files, the prefix of their names.
    pub path: Vec<u8>,
    /// Each rank reads the bytes of the rank this many above it.
    pub shift: u32,
    /// True if all ranks get the whole index before they read.
    pub laminate: bool,
    /// True if all files are read once more after publishing, through the namespace.
    pub check_published: bool,
    /// Name under which to publish.
    pub name: String,
}

/// The report of `esker bench shared-file`.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of files.
    pub files: u32,
    /// Number of writes of all ranks.
    pub transfers: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Seconds until all ranks had synced all writes.
    pub write_seconds: f64,
    /// Bytes written over these seconds.
    pub write_bytes_per_second: f64,
    /// Seconds until everything was read back and compared, including lamination if requested.
    pub read_seconds: f64,
    /// Bytes read over these seconds.
    pub read_bytes_per_second: f64,
    /// Seconds to close the files and publish.
    pub publish_seconds: f64,
    /// Bytes that rank 0 compared, including those read after publishing; other ranks compare
    /// theirs.
    pub verified_bytes_of_rank_0: u64,
    /// Messages that rank 0 had sent when all reads were done.
    pub messages_of_rank_0: u64,
    /// The published name.
    pub published: String,
    /// Its change set.
    pub set: String,
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replay: {} wrote {} in {} to {} in {:.3} s ({:.1} MB/s), read them in {:.3} s ({:.1} MB/s), \
             published in {:.3} s; every byte was compared",
            counted(u64::from(self.ranks), "rank"),
            counted(self.bytes, "byte"),
            counted(self.transfers, "transfer"),
            counted(u64::from(self.files), "file"),
            self.write_seconds,
            self.write_bytes_per_second / 1e6,
            self.read_seconds,
            self.read_bytes_per_second / 1e6,
            self.publish_seconds,
        )
    }
}

impl ReplayedWork {
    /// Parses a trace: one write per line, `rank offset length`; empty lines and text after a `#`
    /// are ignored.
    ///
    /// # Errors
    /// `Invalid` names the line; `TooLarge` for one over [`TRANSFER_BYTES_MAX`], `FileTooLarge` for
    /// one that ends beyond [`FILE_BYTES_MAX`].
    pub fn parse_trace(text: &str) -> Result<Self> {
        let mut transfers = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let wrong = || {
                let what = format!("line {number} of the trace is not `rank offset length`");
                Error::new(Kind::Invalid, what)
            };
            let [rank, offset, length] = words[..] else { return Err(wrong()) };
            let transfer = ReplayedTransfer {
                rank: rank.parse().map_err(|_| wrong())?,
                offset: offset.parse().map_err(|_| wrong())?,
                length: length.parse().map_err(|_| wrong())?,
            };
            if transfer.length > TRANSFER_BYTES_MAX {
                let what = format!("line {number} of the trace: a transfer of {length} bytes");
                return Err(Error::new(Kind::TooLarge, what));
            }
            let end = transfer.offset.checked_add(transfer.length);
            if end.is_none_or(|end| end > FILE_BYTES_MAX) {
                let what = format!(
                    "line {number} of the trace: {length} bytes from {offset} on end beyond \
                     {FILE_BYTES_MAX}, where every file ends"
                );
                return Err(Error::new(Kind::FileTooLarge, what));
            }
            transfers.push(transfer);
        }
        Ok(Self::Trace(transfers))
    }

    /// The least number of ranks that it needs.
    #[must_use]
    pub fn ranks_min(&self) -> u32 {
        match self {
            Self::Blocks { .. } => 1,
            Self::Trace(all) => all.iter().map(|one| one.rank.saturating_add(1)).max().unwrap_or(1),
        }
    }

    fn check(&self, ranks: u32) -> Result<()> {
        let is_possible = match self {
            Self::Blocks { transfer_bytes, block_bytes, segments, .. } => {
                let all = block_bytes.checked_mul(u64::from(ranks));
                let all = all.and_then(|of_segment| of_segment.checked_mul(*segments));
                (1..=TRANSFER_BYTES_MAX).contains(transfer_bytes)
                    && block_bytes.is_multiple_of(*transfer_bytes)
                    && all.is_some_and(|all| i64::try_from(all).is_ok())
            }
            Self::Trace(_) => self.ranks_min() <= ranks,
        };
        let what = "a block is a multiple of a transfer, and a trace's ranks are ranks of the job";
        if is_possible { Ok(()) } else { Err(Error::new(Kind::Invalid, what)) }
    }

    /// The writes of `rank` of `ranks`, in order, as offsets and lengths; in its own file if
    /// `is_alone`.
    fn of_rank(&self, rank: u32, ranks: u32, is_alone: bool) -> Vec<(u64, u64)> {
        let (transfer, block, segments, is_strided) = match self {
            Self::Trace(all) => {
                let own = all.iter().filter(|one| one.rank == rank);
                return own.map(|one| (one.offset, one.length)).collect();
            }
            Self::Blocks { transfer_bytes, block_bytes, segments, is_strided } => {
                (*transfer_bytes, *block_bytes, *segments, *is_strided)
            }
        };
        let (rank, ranks) = if is_alone { (0, 1) } else { (u64::from(rank), u64::from(ranks)) };
        let offset = |segment: u64, turn: u64| {
            let start = segment * ranks * block;
            let within = if is_strided {
                (turn * ranks + rank) * transfer
            } else {
                rank * block + turn * transfer
            };
            (start + within, transfer)
        };
        let turns = block / transfer;
        (0..segments).flat_map(|at| (0..turns).map(move |turn| offset(at, turn))).collect()
    }
}

/// Replays as one rank of a job; all ranks call it. Rank 0 gets the report.
///
/// # Errors
/// `Corrupt` names the file and the first wrong byte; `Invalid` for inconsistent work; errors of
/// shared files.
pub fn replay<T: Transport>(
    mut transport: T,
    repository: &Repository,
    bases: &[SetId],
    options: &SharedOptions,
    replay: &TraceReplay,
) -> Result<Option<ReplayReport>> {
    let (me, ranks) = (transport.rank(), transport.size());
    replay.work.check(ranks)?;
    let id = agree(&mut transport)?;
    let job = SharedJob::begin(transport, repository, id, bases, options)?;
    let mut run = ReplayRun { job, replay, me, ranks, files: Vec::new(), verified_bytes: 0 };
    let start_ns = run.meet()?;
    run.write()?;
    let written_ns = run.meet()?;
    run.read()?;
    let messages_of_rank_0 = run.job.segments().counters().sent_messages;
    let read_ns = run.meet()?;
    for file in std::mem::take(&mut run.files) {
        run.job.close(file)?;
    }
    let end_ns = run.meet()?;
    let clock = esker_base::clock::SystemClock;
    let publish_start_ns = esker_base::Clock::monotonic_ns(&clock);
    let ReplayRun { job, mut verified_bytes, .. } = run;
    let (set, _) = job.publish(&replay.name)?;
    let publish_ns = esker_base::Clock::monotonic_ns(&clock) - publish_start_ns;
    if replay.check_published {
        verified_bytes += check_published(repository, set, replay, me, ranks)?;
    }
    let (mut transfers, mut bytes) = (0, 0);
    for rank in (0..ranks).filter(|_| me == Rank(0)) {
        for (_, length) in replay.transfers(rank, ranks) {
            (transfers, bytes) = (transfers + 1, bytes + length);
        }
    }
    let seconds = |ns: u64| ns as f64 / 1e9;
    let (write_seconds, read_seconds) =
        (seconds(written_ns - start_ns), seconds(read_ns - written_ns));
    Ok((me == Rank(0)).then(|| ReplayReport {
        ranks,
        files: replay.files(ranks),
        transfers,
        bytes,
        write_seconds,
        write_bytes_per_second: bytes as f64 / write_seconds,
        read_seconds,
        read_bytes_per_second: bytes as f64 / read_seconds,
        publish_seconds: seconds(end_ns - read_ns + publish_ns),
        verified_bytes_of_rank_0: verified_bytes,
        messages_of_rank_0,
        published: replay.name.clone(),
        set: set.to_string(),
    }))
}

/// A new job's id, drawn by rank 0.
fn agree<T: Transport>(transport: &mut T) -> Result<JobId> {
    if transport.rank() != Rank(0) {
        let told = transport.receive_soon(&[AGREE], "the job's id")?.bytes;
        let id = told.try_into().map_err(|_| Error::new(Kind::Corrupt, "rank 0 sent no job id"))?;
        return Ok(JobId(u128::from_le_bytes(id)));
    }
    let id = Random::from_system().u128();
    for rank in Rank::all(transport.size()).skip(1) {
        transport.send(rank, AGREE, id.to_le_bytes().to_vec())?;
    }
    Ok(JobId(id))
}

/// A replay in progress.
struct ReplayRun<'a, T> {
    job: SharedJob<T>,
    replay: &'a TraceReplay,
    me: Rank,
    ranks: u32,
    files: Vec<SharedFile>,
    verified_bytes: u64,
}

impl<T: Transport> ReplayRun<'_, T> {
    /// Waits for all ranks; returns the time then.
    fn meet(&mut self) -> Result<u64> {
        self.job.barrier()?;
        Ok(esker_base::Clock::monotonic_ns(&esker_base::clock::SystemClock))
    }

    fn write(&mut self) -> Result<()> {
        for number in 0..self.replay.files(self.ranks) {
            self.files.push(self.job.open(self.replay.path_of(number), Some(0o644))?);
        }
        let number = self.replay.file_of(self.me.0);
        let file = &mut self.files[number as usize];
        let mut bytes = Vec::new();
        for (offset, length) in self.replay.transfers(self.me.0, self.ranks) {
            fill(&mut bytes, number, offset, length);
            self.job.write(file, offset, &bytes)?;
        }
        self.job.sync(file)
    }

    fn read(&mut self) -> Result<()> {
        if self.replay.laminate {
            for file in &mut self.files {
                self.job.laminate(file)?;
            }
        }
        let shifted = (u64::from(self.me.0) + u64::from(self.replay.shift)) % u64::from(self.ranks);
        let of = u32::try_from(shifted).expect("a rank");
        let number = self.replay.file_of(of);
        let file = &mut self.files[number as usize];
        let mut wanted = Vec::new();
        for (offset, length) in self.replay.transfers(of, self.ranks) {
            fill(&mut wanted, number, offset, length);
            let got = self.job.read(file, offset, wanted.len())?;
            compare(&got, &wanted, self.replay, number, offset)?;
            self.verified_bytes += length;
        }
        Ok(())
    }
}

impl TraceReplay {
    fn files(&self, ranks: u32) -> u32 {
        if self.file_per_process { ranks } else { 1 }
    }

    fn file_of(&self, rank: u32) -> u32 {
        if self.file_per_process { rank } else { 0 }
    }

    fn path_of(&self, number: u32) -> Vec<u8> {
        if !self.file_per_process {
            return self.path.clone();
        }
        [&self.path[..], format!(".{number:08}").as_bytes()].concat()
    }

    fn transfers(&self, rank: u32, ranks: u32) -> Vec<(u64, u64)> {
        self.work.of_rank(rank, ranks, self.file_per_process)
    }
}

/// Reads the bytes of rank `me` from the published files; returns how many there were.
fn check_published(
    repository: &Repository,
    set: SetId,
    replay: &TraceReplay,
    me: Rank,
    ranks: u32,
) -> Result<u64> {
    let identity = esker_fs::stack::identity::Identity::of_process();
    let namespace = repository.open(&[set], identity)?;
    let number = replay.file_of(me.0);
    let inode = namespace.stat(replay.path_of(number), FollowLinks::Yes)?;
    let (mut wanted, mut bytes) = (Vec::new(), 0);
    for (offset, length) in replay.transfers(me.0, ranks) {
        fill(&mut wanted, number, offset, length);
        let got: Bytes = namespace.read(&inode, offset, wanted.len())?;
        compare(&got, &wanted, replay, number, offset)?;
        bytes += length;
    }
    Ok(bytes)
}

fn compare(
    got: &[u8],
    wanted: &[u8],
    replay: &TraceReplay,
    number: u32,
    offset: u64,
) -> Result<()> {
    if got == wanted {
        return Ok(());
    }
    let at = got.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(got.len());
    let object = String::from_utf8_lossy(&replay.path_of(number)).into_owned();
    let what = match (got.get(at), wanted.get(at)) {
        (Some(got), Some(wanted)) => format!("is {got:02x}, not {wanted:02x}"),
        _ => "is missing".to_owned(),
    };
    let what = format!("{object}: byte {} {what}", offset + at as u64);
    Err(Error::new(Kind::Corrupt, what))
}

/// Sets `bytes` to the `length` bytes at `offset` of file `number`.
fn fill(bytes: &mut Vec<u8>, number: u32, offset: u64, length: u64) {
    bytes.clear();
    let end = offset + length;
    let mut at = offset;
    while at < end {
        let word = word(number, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let count = (8 - at % 8).min(end - at);
        bytes.extend_from_slice(&word[from..from + count as usize]);
        at += count;
    }
}

/// The output of SplitMix64 for a file and a word index.
fn word(number: u32, index: u64) -> u64 {
    let mut z = (u64::from(number) << 50).wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_and_wrong_lines_named() {
        let ReplayedWork::Trace(all) =
            ReplayedWork::parse_trace("# who where\n0 5 7\n\n3 0 2 # last\n").unwrap()
        else {
            panic!("a trace");
        };
        assert_eq!(all[1], ReplayedTransfer { rank: 3, offset: 0, length: 2 });
        assert_eq!(ReplayedWork::Trace(all).ranks_min(), 4);
        for wrong in ["0 1", "0 1 2 3", "x 1 2", "0 -1 2"] {
            let error = ReplayedWork::parse_trace(&format!("0 0 1\n{wrong}")).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    /// Symptom: for a line whose end exceeds 64 bits, a replay computed with a wrapped end.
    /// Cause: the sum of offset and length was not checked.
    /// Fix: it is, as for any file.
    #[test]
    fn lines_that_end_beyond_every_file_are_refused() {
        for offset in [u64::MAX, u64::MAX - 6, FILE_BYTES_MAX - 6] {
            let error = ReplayedWork::parse_trace(&format!("0 0 1\n0 {offset} 7")).unwrap_err();
            assert_eq!(error.kind(), Kind::FileTooLarge);
            assert!(error.to_string().contains("line 2"), "{error}");
        }
        assert!(ReplayedWork::parse_trace(&format!("0 {} 7", FILE_BYTES_MAX - 7)).is_ok());
    }

    #[test]
    fn blocks_cover_the_file_once() {
        for is_strided in [false, true] {
            let (transfer_bytes, block_bytes, segments) = (10, 40, 3);
            let work = ReplayedWork::Blocks { transfer_bytes, block_bytes, segments, is_strided };
            let mut all: Vec<(u64, u64)> =
                (0..5).flat_map(|rank| work.of_rank(rank, 5, false)).collect();
            all.sort_unstable();
            let wanted: Vec<(u64, u64)> = (0..60).map(|at| (at * 10, 10)).collect();
            assert_eq!(all, wanted);
            assert_eq!(work.of_rank(3, 5, true).len(), 12);
        }
    }

    #[test]
    fn bytes_depend_on_where_they_are_alone() {
        let (mut whole, mut part) = (Vec::new(), Vec::new());
        fill(&mut whole, 3, 0, 100);
        fill(&mut part, 3, 13, 50);
        assert_eq!(part, whole[13..63]);
        fill(&mut part, 4, 13, 50);
        assert_ne!(part, whole[13..63]);
    }
}

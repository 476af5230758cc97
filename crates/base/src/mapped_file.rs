// SPDX-License-Identifier: Apache-2.0
//! Mapped file: bytes of an immutable file, read without a system call.
//!
//! A page of a mapping that the kernel cannot read, since the file was cut or its disk fails,
//! raises SIGBUS, which ends a process. So files are mapped only in processes that have a guard
//! against it (`fault_guard.rs`): there such a mapping turns into zeros, and is lost from then on.
//! Nothing in a mapping is trusted twice: readers copy bytes out, check the copy, and use the copy,
//! because any process that may write to the file may change it at any time.
//! Concurrency: share freely.

mod fault_guard;

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::fs::fstat;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use fault_guard::Region;

/// Lets this process map files: from now on a page that cannot be read ends a mapping instead of
/// the process. It handles SIGBUS, and passes on what other memory raises.
///
/// Programs call it once when they start; without it, [`MappedFile::of`] maps nothing.
pub fn guard_process() {
    fault_guard::install();
}

/// The first bytes of a file, mapped for reading.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<u8>,
    bytes: usize,
    region: Region,
}

// SAFETY: the mapping is owned, and only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `bytes` of `file`. `None` if it has fewer, if the process has no guard or too
    /// many mappings, or if the kernel refuses.
    #[must_use]
    pub fn of(file: &File, bytes: u64) -> Option<Self> {
        let length = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)?;
        if u64::try_from(fstat(file).ok()?.st_size).ok()? < bytes {
            return None;
        }
        let reserved = fault_guard::reserve()?;
        // SAFETY: a new mapping aliases nothing; its bytes are only copied out, and never borrowed.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0)
        };
        let start = NonNull::new(start.ok()?.cast::<u8>())?;
        // Reads are at random: the kernel should not read ahead. A refusal is no loss.
        // SAFETY: the range is the mapping.
        let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::Random) };
        let region = reserved.cover(start.as_ptr() as usize, length);
        Some(Self { start, bytes: length, region })
    }

    /// Copies `range` to `out`, which is as long; false if the mapping has not all of it or is
    /// lost.
    #[inline]
    #[must_use]
    pub fn copy(&self, range: Range<usize>, out: &mut [u8]) -> bool {
        if range.start > range.end || range.end > self.bytes || out.len() != range.len() {
            return false;
        }
        // SAFETY: the range is within the mapping, and `out` is as long and not part of it.
        unsafe {
            let from = self.start.as_ptr().add(range.start);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
        !self.is_lost()
    }

    /// The address of byte `offset` in memory, for hints to the processor. It may lie outside.
    #[inline]
    #[must_use]
    pub fn address(&self, offset: usize) -> *const u8 {
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Returns whether a page could not be read, and the mapping shows zeros since.
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.region.is_lost()
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.region.uncover();
        // SAFETY: the mapping is ours, and nothing borrows from it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PAGES: usize = 8;
    const PAGE_BYTES: usize = 4096;

    fn file() -> File {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&[7; PAGES * PAGE_BYTES]).expect("write");
        file
    }

    #[test]
    fn a_mapping_has_the_bytes_that_were_asked_for_and_no_others() {
        guard_process();
        let file = file();
        let bytes = (PAGES * PAGE_BYTES) as u64;
        assert!(MappedFile::of(&file, bytes + 1).is_none());
        assert!(MappedFile::of(&file, 0).is_none());
        let mapped = MappedFile::of(&file, bytes - 1).expect("a mapping");
        let mut out = [0; 10];
        assert!(mapped.copy(100..110, &mut out) && out == [7; 10]);
        let end = PAGES * PAGE_BYTES;
        assert!(!mapped.copy(end - 10..end, &mut out));
        assert!(!mapped.copy(end + 10..end + 20, &mut out));
        assert!(!mapped.copy(5..6, &mut out));
        assert!(!mapped.is_lost());
    }

    /// A mapped file that another process cut ended the process that read it, by SIGBUS.
    #[test]
    fn a_file_that_is_cut_loses_its_mapping_and_nothing_else() {
        guard_process();
        guard_process();
        let (cut, other) = (file(), file());
        let bytes = (PAGES * PAGE_BYTES) as u64;
        let (lost, whole) = (MappedFile::of(&cut, bytes), MappedFile::of(&other, bytes));
        let (lost, whole) = (lost.expect("a mapping"), whole.expect("a mapping"));
        let mut out = [1; 8];
        assert!(lost.copy(0..8, &mut out));
        cut.set_len(0).expect("cut");
        for page in 0..PAGES {
            assert!(!lost.copy(page * PAGE_BYTES..page * PAGE_BYTES + 8, &mut out));
            assert_eq!(out, [0; 8]);
        }
        assert!(lost.is_lost());
        assert!(whole.copy(0..8, &mut out) && out == [7; 8]);
        drop(lost);
        let again = MappedFile::of(&other, bytes).expect("a mapping");
        assert!(again.copy(0..8, &mut out) && out == [7; 8] && !again.is_lost());
    }

    extern "C" fn count_signal(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }

    static SIGNALS: AtomicUsize = AtomicUsize::new(0);

    /// Raises SIGBUS in this process, whose action before the guard was `action`, and then reads a
    /// mapped file that was cut.
    fn raise_bus_error(action: &str) {
        let action = match action {
            "default" => Some(libc::SIG_DFL),
            "ignore" => Some(libc::SIG_IGN),
            "handler" => Some(count_signal as *const () as libc::sighandler_t),
            _ => None,
        };
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: this process runs one test, and nothing else sets its action or limit.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            action.map(|action| libc::signal(libc::SIGBUS, action));
        }
        guard_process();
        let file = file();
        let mapped = MappedFile::of(&file, 8).expect("a mapping");
        // Without the guard, the second signal and the file that was cut would end it as well.
        let ends = matches!(action, None | Some(libc::SIG_DFL));
        for _ in 0..if ends { 1 } else { 3 } {
            // SAFETY: raises a signal in this thread alone.
            assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
        }
        if ends {
            return;
        }
        file.set_len(0).expect("cut");
        assert!(!mapped.copy(0..8, &mut [0; 8]) && mapped.is_lost());
        if action == Some(count_signal as *const () as libc::sighandler_t) {
            assert_eq!(SIGNALS.load(Ordering::Relaxed), 3);
        }
    }

    /// Symptom: after somebody sent SIGBUS to a process, a file that was cut ended it.
    /// Cause: the guard passed the signal on by removing itself, or Rust's runtime removed it, and
    /// the process continued without a guard.
    /// Fix: a sent signal ends the process if its action before the guard was the default or that
    /// of Rust's runtime, and otherwise leaves the guard installed.
    #[test]
    fn a_bus_error_that_is_sent_never_leaves_the_process_without_its_guard() {
        const ACTION: &str = "ESKER_TEST_BUS_ACTION";
        if let Ok(action) = std::env::var(ACTION) {
            return raise_bus_error(&action);
        }
        let name = "mapped_file::tests::\
                    a_bus_error_that_is_sent_never_leaves_the_process_without_its_guard";
        let run = |action: &str| {
            let mut test = std::process::Command::new(std::env::current_exe().expect("a path"));
            test.args(["--exact", name]).env(ACTION, action).output().expect("run")
        };
        for action in ["default", "runtime"] {
            let ended = run(action);
            assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{action}: {ended:?}");
        }
        for action in ["ignore", "handler"] {
            let ended = run(action);
            assert!(ended.status.success(), "{action}: {ended:?}");
            assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
        }
    }

    #[test]
    fn mappings_come_and_go_while_others_are_read() {
        guard_process();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let file = file();
                        let bytes = (PAGES * PAGE_BYTES) as u64;
                        let mapped = MappedFile::of(&file, bytes).expect("a mapping");
                        if round % 2 == 0 {
                            file.set_len(0).expect("cut");
                        }
                        let mut out = [1; 8];
                        assert_eq!(mapped.copy(4096..4104, &mut out), round % 2 == 1);
                    }
                });
            }
        });
    }
}

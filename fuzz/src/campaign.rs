// SPDX-License-Identifier: Apache-2.0
//! Campaign: runs every target on random bytes for a bounded time, as plain tests.
//!
//! Input n of a target depends only on n, so a longer run repeats a shorter one and continues it.
//! `ESKER_FUZZ_SECONDS` bounds each target; a failure prints its number, and `ESKER_SEED=n` runs
//! only that input. Inputs that once failed come first, and files in corpus/TARGET and
//! artifacts/TARGET, left by a coverage-guided run.
//! An allocation over `ALLOCATION_BYTES_MAX` fails, which ends the process: no decoder requests
//! that much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;

use esker_base::Random;
use esker_base::clock::{Clock, SystemClock};

/// Greatest length of an input.
const INPUT_BYTES_MAX: u64 = 6_000;
/// More than any decoder allocates at once for an input of that length.
const ALLOCATION_BYTES_MAX: usize = 256 << 20;
/// Default number of seconds per target.
const SECONDS_DEFAULT: u64 = 2;
/// Numbers of inputs that once failed, with their targets; these come first.
const FAILED_INPUTS: &[(&str, u64)] = &[("stores", 12_525)];

struct Bounded;

// SAFETY: every call is forwarded to the system's allocator, or fails as an allocator may.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static BOUNDED: Bounded = Bounded;

/// Prints the current input when a target panics.
struct Announce(String);

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed on {}", self.0);
        }
    }
}

fn input(number: u64) -> Vec<u8> {
    let mut random = Random::from_seed(number);
    let length = random.below(random.clone().below(INPUT_BYTES_MAX) + 1);
    let mut bytes = vec![0; usize::try_from(length).expect("small")];
    random.fill(&mut bytes);
    // Small values are more interesting than uniform ones.
    let mask = [0xFF, 0x0F, 0x01, 0x83][usize::try_from(random.below(4)).expect("small")];
    let from = usize::try_from(random.below(length + 1)).expect("small");
    bytes[from..].iter_mut().for_each(|byte| *byte &= mask);
    bytes
}

fn run(name: &str, target: fn(&[u8])) {
    let number = |name| std::env::var(name).ok().map(|n: String| n.parse().expect("a number"));
    if let Some(seed) = number("ESKER_SEED") {
        return target(&input(seed));
    }
    for folder in ["corpus", "artifacts"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name);
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            let _announce = Announce(format!("{}", entry.path().display()));
            target(&std::fs::read(entry.path()).expect("a file of the corpus"));
        }
    }
    for &(_, failed) in FAILED_INPUTS.iter().filter(|(target, _)| *target == name) {
        let _announce = Announce(format!("input {failed}: replay with ESKER_SEED={failed}"));
        target(&input(failed));
    }
    let seconds = number("ESKER_FUZZ_SECONDS").unwrap_or(SECONDS_DEFAULT);
    let end = SystemClock.monotonic_ns() + seconds * 1_000_000_000;
    let mut inputs = 0;
    while SystemClock.monotonic_ns() < end {
        let _announce = Announce(format!("input {inputs}: replay with ESKER_SEED={inputs}"));
        target(&input(inputs));
        inputs += 1;
    }
    println!("{name}: {inputs} inputs in {seconds} s");
}

#[test]
fn auxiliary() {
    run("auxiliary", crate::auxiliary::run);
}

#[test]
fn block() {
    run("block", crate::block::run);
}

#[test]
fn table() {
    run("table", crate::table::run);
}

#[test]
fn manifest() {
    run("manifest", crate::manifest::run);
}

#[test]
fn log() {
    run("log", crate::log::run);
}

#[test]
fn segments() {
    run("segments", crate::segments::run);
}

#[test]
fn messages() {
    run("messages", crate::messages::run);
}

#[test]
fn stores() {
    run("stores", |bytes| {
        crate::stores::run(bytes);
    });
}

#[test]
fn traces() {
    run("traces", crate::traces::run);
}

// SPDX-License-Identifier: Apache-2.0
//! Fault guard: a handler of SIGBUS that turns a mapping whose pages cannot be read into zeros.
//!
//! The handler looks the address up among the regions that mappings cover, maps zeros over the
//! whole region, marks it as lost, and returns to the instruction that faulted. Faults at any other
//! address, and signals that a process sent, go to the previous handler. Without a previous
//! handler, a sent signal takes the previous action: it ends the process or is ignored. The guard
//! therefore stays installed as long as the process continues.
//! Concurrency: `FREE` guards which regions are in use; the handler reads their bounds as atomics
//! and takes no lock. A region is covered after it was mapped and uncovered before it is unmapped,
//! so an address in it that faults is in that mapping.
//! Source: systemd's journal reads its mapped files behind the same guard (`sigbus.c`).

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The most mappings at a time; further ones are refused. The kernel allows a process 65,530.
const REGIONS_MAX: usize = 8192;

struct Bounds {
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_lost: AtomicBool,
}

static REGIONS: [Bounds; REGIONS_MAX] = [const {
    Bounds {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; REGIONS_MAX];
/// Regions from this one on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Regions that were used and are free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

static INSTALLING: Once = Once::new();
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static BEFORE: ActionBefore = ActionBefore(UnsafeCell::new(MaybeUninit::uninit()));

/// The signal's previous action.
struct ActionBefore(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is installed.
unsafe impl Sync for ActionBefore {}

/// A region that is not free any more and covers nothing yet.
#[derive(Debug)]
pub(super) struct Reserved(Region);

/// The region of one mapping.
#[derive(Debug)]
pub(super) struct Region(usize);

impl Reserved {
    /// Covers the `bytes` at `start`, which were just mapped.
    pub(super) fn cover(self, start: usize, bytes: usize) -> Region {
        let bounds = &REGIONS[self.0.0];
        bounds.is_lost.store(false, Ordering::Relaxed);
        bounds.bytes.store(bytes, Ordering::Relaxed);
        bounds.start.store(start, Ordering::Release);
        self.0
    }
}

impl Region {
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        REGIONS[self.0].is_lost.load(Ordering::Relaxed)
    }

    /// Covers nothing any more; the mapping is still there.
    pub(super) fn uncover(&self) {
        REGIONS[self.0].start.store(0, Ordering::Release);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.uncover();
        FREE.lock().push(self.0);
    }
}

/// A free region; `None` without a guard, or if there is none left.
pub(super) fn reserve() -> Option<Reserved> {
    if !IS_INSTALLED.load(Ordering::Acquire) {
        return None;
    }
    let mut free = FREE.lock();
    let number = free.pop().or_else(|| {
        let used = USED.load(Ordering::Relaxed);
        (used < REGIONS_MAX).then(|| USED.fetch_add(1, Ordering::Release))
    })?;
    Some(Reserved(Region(number)))
}

/// Installs the handler, once.
pub(super) fn install() {
    INSTALLING.call_once(|| {
        // SAFETY: both structures are valid for the calls. An action of all zeros has an empty
        // mask. The handler is async-signal-safe: it reads atomics, and calls mmap, sigaction and
        // raise.
        let installed = unsafe {
            let before = (*BEFORE.0.get()).as_mut_ptr();
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, std::ptr::null(), before) == 0
                && libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) == 0
        };
        IS_INSTALLED.store(installed, Ordering::Release);
    });
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo; one with a positive code is of a fault, which has
    // an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code > 0 && zero_region_of(address) {
        return;
    }
    let is_sent = code <= 0;
    // SAFETY: written before this handler was installed. The previous handler is called with one
    // argument or three, as its flags (`SA_SIGINFO`) say; without one, the default action takes the
    // fault when it recurs.
    unsafe {
        let before = (*BEFORE.0.get()).as_ptr();
        match (*before).sa_sigaction {
            libc::SIG_IGN if is_sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, before, std::ptr::null_mut());
            }
            handler if (*before).sa_flags & libc::SA_SIGINFO != 0 => {
                type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
            }
            handler => {
                std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal);
            }
        }
        // A sent signal does not come again as a fault does. Rust's runtime expects that: its
        // handler only restores the default. So the signal is raised again, to be delivered when
        // this returns.
        let mut now: libc::sigaction = std::mem::zeroed();
        if is_sent
            && libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == libc::SIG_DFL
        {
            libc::raise(signal);
        }
    }
}

/// Maps zeros over the region that has `address`; false if none has.
fn zero_region_of(address: usize) -> bool {
    for bounds in &REGIONS[..USED.load(Ordering::Acquire).min(REGIONS_MAX)] {
        let start = bounds.start.load(Ordering::Acquire);
        let bytes = bounds.bytes.load(Ordering::Acquire);
        if start == 0 || address < start || address - start >= bytes {
            continue;
        }
        // The entry may have been given to another mapping between the two loads, whose length must
        // not be taken for that of the one at `start`.
        if bounds.start.load(Ordering::Acquire) != start {
            continue;
        }
        bounds.is_lost.store(true, Ordering::Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the region is a mapping that its owner only reads and has not unmapped, since a
        // thread is reading it; the error number that the interrupted code may look at is put back.
        return unsafe {
            let errno = *libc::__errno_location();
            let zeros = libc::mmap(start as *mut _, bytes, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = errno;
            zeros != libc::MAP_FAILED
        };
    }
    false
}

// SPDX-License-Identifier: Apache-2.0
//! Outlines of a table's blocks, and the mapped file from which reads fetch parts of blocks.
//!
//! Once the cache of blocks is full, a point read keeps the outline of each block that it fetches.
//! The next read of the block copies a few hundred bytes of the mapped file, which the kernel has
//! in memory, and checks only those. If the store has no file to map, or the file no longer has all
//! bytes, readers read whole blocks as before. Outlines stay as long as the table is open and take
//! their memory from the cache's budget. Together with other reserved memory they take up to half
//! of it.
//! Concurrency: readers take no lock; `forms` is locked while an outline is made.

use std::cell::{RefCell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use esker_base::mapped_file::MappedFile;
use esker_base::store::SharedStore;
use parking_lot::Mutex;

use crate::block::{Block, Outline, OutlineForm, PartsBuffer};
use crate::cache::BlockCache;
use crate::memory::{Zeroable, ZeroedArray, prefetch, prefetch_value};
use crate::schema::{Key, RowBuffer, Schema};

/// Maximum number of forms of a table; blocks whose outlines would need another form get no
/// outline.
const FORMS_MAX: usize = 64;
/// States of a cell.
const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const FILLED: u8 = 2;
/// The block cannot have an outline.
const UNFIT: u8 = 3;

/// The outline of one block, once it has one.
#[derive(Debug)]
#[repr(align(64))]
struct OutlineCell {
    outline: UnsafeCell<MaybeUninit<Outline>>,
    state: AtomicU8,
}

const _: () = assert!(size_of::<OutlineCell>() == 256);

// SAFETY: a state of zero says that there is no outline; `Outlines` drops existing ones.
unsafe impl Zeroable for OutlineCell {}
// SAFETY: an outline is written once, by the thread that made the cell `FILLING`, and only read
// once the cell is `FILLED`.
unsafe impl Sync for OutlineCell {}

impl OutlineCell {
    #[inline]
    fn get(&self) -> Option<&Outline> {
        if self.state.load(Ordering::Acquire) != FILLED {
            return None;
        }
        // SAFETY: it was written before the cell was filled, and stays.
        Some(unsafe { (*self.outline.get()).assume_init_ref() })
    }

    /// Sets it to the result of `make`, unless another thread sets it.
    fn fill(&self, make: impl FnOnce() -> Option<Outline>) {
        let relaxed = Ordering::Relaxed;
        if self.state.compare_exchange(EMPTY, FILLING, relaxed, relaxed).is_err() {
            return;
        }
        let state = make().map_or(UNFIT, |outline| {
            // SAFETY: no other thread reads or writes it until the cell is filled.
            unsafe { (*self.outline.get()).write(outline) };
            FILLED
        });
        self.state.store(state, Ordering::Release);
    }
}

/// Outlines of the blocks of one table.
#[derive(Debug)]
pub(super) struct Outlines {
    file: MappedFile,
    cells: ZeroedArray<OutlineCell>,
    forms: Mutex<Vec<Arc<OutlineForm>>>,
    held_bytes: AtomicU64,
}

impl Drop for Outlines {
    fn drop(&mut self) {
        for cell in self.cells.iter_mut() {
            if *cell.state.get_mut() == FILLED {
                // SAFETY: it was written, and nothing uses it after this.
                unsafe { cell.outline.get_mut().assume_init_drop() };
            }
        }
    }
}

thread_local! {
    static PARTS: RefCell<PartsBuffer> = const { RefCell::new([0; size_of::<PartsBuffer>()]) };
}

impl Outlines {
    /// Maps the first `bytes` of the object `name`, a table of `blocks` blocks. Returns `None` if
    /// it cannot be mapped, or if the budget of `cache` has no room.
    pub(super) fn open(
        (store, name): (&SharedStore, &str),
        bytes: u64,
        blocks: usize,
        cache: &BlockCache,
    ) -> Option<Self> {
        let file = store.local_files()?.open(name).ok()?;
        let file = MappedFile::of(&file, bytes)?;
        let held_bytes = (blocks * size_of::<OutlineCell>()) as u64;
        cache.reserve(held_bytes).then(|| Self {
            file,
            cells: ZeroedArray::new(blocks),
            forms: Mutex::default(),
            held_bytes: AtomicU64::new(held_bytes),
        })
    }

    /// Bytes of the cache's budget that they hold.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Hints the processor that the outline of block `number` is used soon.
    #[inline]
    pub(super) fn prefetch_cell(&self, number: usize) {
        if let Some(cell) = self.cells.get(number) {
            prefetch_value(cell);
        }
    }

    /// Hints the processor that a record of the block in `range` is read soon. The record's
    /// position in the block is not known yet, but its pages are.
    #[inline]
    pub(super) fn prefetch_block(&self, range: &Range<u64>) {
        prefetch(self.file.address(range.start as usize));
        prefetch(self.file.address(range.end as usize - 1));
    }

    /// The outline of block `number`; `None` if it has none.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&Outline> {
        self.cells.get(number)?.get()
    }

    /// Reads a key's record from the block that starts at `start` and has `outline`, as
    /// [`Outline::get`] does.
    #[inline]
    pub(super) fn get_record(
        &self,
        (outline, start): (&Outline, usize),
        schema: &Schema,
        key: &Key,
        out: (bool, &mut RowBuffer),
    ) -> Option<bool> {
        outline.prefetch(schema.last_key_int(&key.ints), |offset| {
            prefetch(self.file.address(start + offset));
        });
        PARTS.with_borrow_mut(|buffer| {
            let copy = |range: Range<usize>, bytes: &mut [u8]| {
                self.file.copy(start + range.start..start + range.end, bytes)
            };
            outline.get(schema, key, out, (copy, buffer))
        })
    }

    /// Keeps the outline of `block`, which has the number `number` and begins with the group
    /// `group`, if it can have one and the budget of `cache` has room.
    pub(super) fn insert(
        &self,
        number: usize,
        (block, group): (&Block, &[u64]),
        cache: &BlockCache,
    ) {
        let Some(cell) = self.cells.get(number).filter(|_| !self.file.is_lost()) else { return };
        cell.fill(|| {
            let outline = Outline::of(block, group, |form| self.share(form, cache))?;
            self.hold(outline.more_bytes(), cache).then_some(outline)
        });
    }

    /// Returns the shared form that equals `form`; makes `form` a shared one if there is none and
    /// there is room.
    fn share(&self, form: OutlineForm, cache: &BlockCache) -> Option<Arc<OutlineForm>> {
        let mut forms = self.forms.lock();
        if let Some(equal) = forms.iter().find(|own| ***own == form) {
            return Some(Arc::clone(equal));
        }
        if forms.len() == FORMS_MAX || !self.hold(form.memory_bytes(), cache) {
            return None;
        }
        forms.push(Arc::new(form));
        forms.last().cloned()
    }

    fn hold(&self, bytes: usize, cache: &BlockCache) -> bool {
        let has_room = bytes == 0 || cache.reserve(bytes as u64);
        self.held_bytes.fetch_add(if has_room { bytes as u64 } else { 0 }, Ordering::Relaxed);
        has_room
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Outlines of a table's blocks, and the mapped file that their reads fetch parts of blocks from.
//!
//! Once the cache of blocks is full, a block that a point read fetches leaves its outline. The next
//! read of the block takes a few hundred bytes of the mapped file, which the kernel has in memory,
//! and checks just those. Where the store has no file to map, or the file no longer has all bytes,
//! blocks are read whole as before.
//! Outlines stay as long as the table is open and take their memory from the cache's budget, up to
//! half of it together with what else is held.
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

/// Blocks of a table whose outlines would have further forms have none.
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

// SAFETY: a state of zero says that there is no outline; `Outlines` drops those there are.
unsafe impl Zeroable for OutlineCell {}
// SAFETY: an outline is written once, by the thread that made the cell `FILLING`, and only read once
// the cell is `FILLED`.
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

    /// Sets it to what `make` returns, unless another thread does.
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
    /// Maps the first `bytes` of the object `name`, which has so many `blocks`; `None` if it cannot be
    /// mapped, or if the budget of `cache` has no room.
    pub(super) fn open(
        (store, name): (&SharedStore, &str),
        bytes: u64,
        blocks: usize,
        cache: &BlockCache,
    ) -> Option<Self> {
        let file = store.file(name).ok().flatten()?;
        let file = MappedFile::of(&file, bytes)?;
        let held_bytes = (blocks * size_of::<OutlineCell>()) as u64;
        cache.reserve(held_bytes).then(|| Self {
            file,
            cells: ZeroedArray::new(blocks),
            forms: Mutex::default(),
            held_bytes: AtomicU64::new(held_bytes),
        })
    }

    /// What they hold of the cache's budget.
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

    /// Hints the processor that a record of the block at `place` is read soon: where in the block it is
    /// not known yet, but the pages are.
    #[inline]
    pub(super) fn prefetch_block(&self, place: &Range<u64>) {
        prefetch(self.file.address(place.start as usize));
        prefetch(self.file.address(place.end as usize - 1));
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
        outline.prefetch(schema.order(&key.ints), |offset| {
            prefetch(self.file.address(start + offset));
        });
        PARTS.with_borrow_mut(|buffer| {
            let copy = |place: Range<usize>, bytes: &mut [u8]| {
                self.file.copy(start + place.start..start + place.end, bytes)
            };
            outline.get(schema, key, out, (copy, buffer))
        })
    }

    /// Keeps the outline of `block`, which has the number `number` and begins with the group `group`,
    /// if it can have one and the budget of `cache` has room.
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

    /// The form that is equal to `form`, which becomes one if there is room.
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

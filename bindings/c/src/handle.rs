// SPDX-License-Identifier: Apache-2.0
//! Handle: a value that a caller holds instead of the address of an object.
//!
//! ```text
//! bits   63..56    55..0
//!        kind      key of a slot in the table of the kind: generation, thread, index
//! ```
//!
//! A handle is looked up at every call, so that a null pointer, a closed handle and a handle of
//! another kind are errors. A slot is used again with another generation: a closed handle is
//! recognized until its slot has been used some 2^18 times more.
//!
//! Threads of a parent process do not exist in a child that it forked, and its store belongs to the
//! parent: in the child a handle of the parent can only be closed, which there does nothing.
//!
//! Concurrency: tables are lock-free; an object that is closed during a call of another thread is
//! dropped when that call returns.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Once};

use esker::{Error, Kind, Result};
use sharded_slab::Slab;

/// Bits of a handle that hold its kind.
const KIND_BITS: u32 = 8;

/// The geometry of a table: some 2^25 objects of each thread, and 8192 threads that have created
/// objects and not ended.
pub struct HandleGeometry;

impl sharded_slab::Config for HandleGeometry {
    const RESERVED_BITS: usize = KIND_BITS as usize;
    const MAX_THREADS: usize = 8192;
    const MAX_PAGES: usize = 20;
}

impl std::fmt::Debug for HandleGeometry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleGeometry")
    }
}

/// The objects of one kind.
pub type HandleTable<T> = LazyLock<Slab<Arc<HeldObject<T>>, HandleGeometry>>;

/// An object, and the process that made it.
pub struct HeldObject<T> {
    object: T,
    forks: u64,
}

impl<T: HandleKind> HeldObject<T> {
    /// The object.
    pub fn object(&self) -> &T {
        &self.object
    }

    /// Fails in a child of the process that made the object.
    pub fn check_process(&self) -> Result<()> {
        if self.forks == FORKS.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = format!(
            "{}: it belongs to the process that forked this one; open the repository again",
            T::NOUN
        );
        Err(Error::new(Kind::Invalid, what))
    }
}

/// A kind of object that callers hold.
pub trait HandleKind: Sized + 'static {
    /// Distinguishes the kind from others; not 0.
    const TAG: u8;
    /// The noun for the object in errors.
    const NOUN: &'static str;

    /// The table of the kind.
    fn table() -> &'static HandleTable<Self>;
}

/// Implements [`HandleKind`] for a type with a table of its own.
macro_rules! handle_kind {
    ($type:ty, $tag:literal, $noun:literal) => {
        impl $crate::handle::HandleKind for $type {
            const TAG: u8 = $tag;
            const NOUN: &'static str = $noun;

            fn table() -> &'static $crate::handle::HandleTable<Self> {
                static TABLE: $crate::handle::HandleTable<$type> =
                    std::sync::LazyLock::new(sharded_slab::Slab::new_with_config);
                &TABLE
            }
        }
    };
}
pub(crate) use handle_kind;

/// Forks between the first process that loaded the library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

fn count_forks() {
    extern "C" fn count_fork() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function only adds to an atomic. If it cannot be registered, for lack of
        // memory, a child that uses its parent's handles is not told.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}

/// The state of an object whose handle was closed.
pub enum ClosedObject<T> {
    /// The caller owns it.
    Owned(T),
    /// A call of another thread, or an object that depends on it, still holds it; it is dropped
    /// after that.
    InUse,
    /// A parent of this process made it, and closing it here does nothing.
    Inherited,
}

impl<T> ClosedObject<T> {
    /// The object for a function that needs it; `None` in a child of the process that made it.
    pub fn owned(self, noun: &str) -> Result<Option<T>> {
        match self {
            Self::Owned(object) => Ok(Some(object)),
            Self::Inherited => Ok(None),
            Self::InUse => {
                let what = format!("{noun}: a call of another thread, or another object, uses it");
                Err(Error::new(Kind::Invalid, what))
            }
        }
    }
}

/// A handle as it crosses the boundary: a pointer in C.
#[repr(transparent)]
pub struct Handle<T> {
    bits: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T: HandleKind> Handle<T> {
    /// The null pointer.
    pub const NULL: Self = Self { bits: 0, kind: PhantomData };

    /// Puts `object` into the table.
    pub fn new(object: T) -> Result<Self> {
        count_forks();
        let held = HeldObject { object, forks: FORKS.load(Ordering::Relaxed) };
        let Some(key) = T::table().insert(Arc::new(held)) else {
            let what = format!("too many open objects of kind {}", T::NOUN);
            return Err(Error::new(Kind::TooManyOpenFiles, what));
        };
        Ok(Self { bits: key | (T::TAG as usize) << Self::SHIFT, kind: PhantomData })
    }

    const SHIFT: u32 = usize::BITS - KIND_BITS;

    /// True for the null pointer.
    pub fn is_null(self) -> bool {
        self.bits == 0
    }

    fn key(self) -> Result<usize> {
        let invalid = |what| Err(Error::new(Kind::Invalid, format!("{}: {what}", T::NOUN)));
        if self.is_null() {
            return invalid("the handle is NULL");
        }
        if self.bits >> Self::SHIFT != usize::from(T::TAG) {
            return invalid("the handle is of another kind, or no handle");
        }
        Ok(self.bits & !(usize::MAX << Self::SHIFT))
    }

    /// Runs `act` with the object, which stays at least until it returns.
    pub fn with<R>(self, act: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        let held = T::table().get(self.key()?).ok_or_else(Self::closed)?;
        held.check_process()?;
        act(&held.object)
    }

    /// Returns the object for a thread that keeps it beyond the call.
    pub fn share(self) -> Result<Arc<HeldObject<T>>> {
        T::table().get(self.key()?).map(|slot| Arc::clone(&slot)).ok_or_else(Self::closed)
    }

    /// True in a child of the process that made the object.
    pub fn is_inherited(self) -> Result<bool> {
        self.share().map(|held| held.check_process().is_err())
    }

    /// True if `other` is the same handle.
    pub fn is(self, other: Self) -> bool {
        self.bits == other.bits
    }

    /// Removes the object from the table.
    pub fn take(self) -> Result<ClosedObject<T>> {
        let key = self.key()?;
        let held = self.share()?;
        if !T::table().remove(key) {
            return Err(Self::closed());
        }
        if held.check_process().is_err() {
            std::mem::forget(held);
            return Ok(ClosedObject::Inherited);
        }
        let object = Arc::into_inner(held).map(|held| held.object);
        Ok(object.map_or(ClosedObject::InUse, ClosedObject::Owned))
    }

    fn closed() -> Error {
        Error::new(Kind::Invalid, format!("{}: the handle was closed", T::NOUN))
    }
}

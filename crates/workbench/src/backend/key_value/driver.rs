// SPDX-License-Identifier: Apache-2.0
//! Driver: a shared library that serves a key-value store, by `peers/key-value-driver.h`.
//!
//! The only unsafe code of the workbench. The workbench bounds everything that a driver returns
//! before it uses it: lengths, texts and states. A driver that breaks the interface in other ways,
//! by writing beyond a buffer for example, can do anything that the process can. Invariants: (1) no
//! function of a library is called before its version was found to be [`DRIVER_VERSION`]; (2) a
//! library stays loaded, since a store may leave threads behind. Concurrency: any number of threads
//! may call [`OpenDatabase`] at once, as the interface demands.

use std::ffi::{CString, c_char, c_void};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::driver_status::{DriverMessage, NOT_FOUND, checked, printable};
use super::target::KeyValueDurability;
use crate::pattern::OBJECT_BYTES_MAX;

/// The version of the interface.
pub const DRIVER_VERSION: u32 = 1;

/// Longest key that the workbench puts.
pub const KEY_BYTES_MAX: usize = 64;

const DESCRIPTION_BYTES: usize = 1 << 10;

type Visitor = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> i32;
type VersionFunction = unsafe extern "C" fn() -> u32;
type DescribeFunction =
    unsafe extern "C" fn(*const c_char, i32, *mut c_char, usize, *mut DriverMessage) -> i32;
type OpenFunction = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    i32,
    i32,
    *mut *mut c_void,
    *mut DriverMessage,
) -> i32;
type CloseFunction = unsafe extern "C" fn(*mut c_void, *mut DriverMessage) -> i32;
type DestroyFunction = unsafe extern "C" fn(*const c_char, *mut DriverMessage) -> i32;
type PutFunction = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *const c_void,
    usize,
    *mut DriverMessage,
) -> i32;
type GetFunction = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *mut usize,
    *mut DriverMessage,
) -> i32;
type RemoveFunction =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut DriverMessage) -> i32;
type ScanFunction = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *const c_void,
    usize,
    Visitor,
    *mut c_void,
    *mut DriverMessage,
) -> i32;

/// The functions of a library that stays loaded.
#[derive(Clone, Copy, Debug)]
struct DriverFunctions {
    describe: DescribeFunction,
    open: OpenFunction,
    close: CloseFunction,
    destroy: DestroyFunction,
    put: PutFunction,
    get: GetFunction,
    remove: RemoveFunction,
    scan: ScanFunction,
}

/// A loaded driver.
#[derive(Debug)]
pub struct KeyValueDriver {
    path: PathBuf,
    functions: DriverFunctions,
}

impl KeyValueDriver {
    /// Loads the library at `path`, which has a `/`.
    ///
    /// # Errors
    /// `NotFound` if there is no such file; `Invalid` for a library that is not a driver, or is one
    /// of another version.
    pub fn load(path: &Path) -> Result<Self> {
        if !path.as_os_str().as_bytes().contains(&b'/') {
            return Err(refused(path, "the path of a driver has a /"));
        }
        if !path.is_file() {
            let what = "there is no such library; `make -C peers drivers` builds those of Esker's \
                        sources";
            return Err(Error::new(Kind::NotFound, format!("{}: {what}", path.display())));
        }
        // SAFETY: loading runs the library's initializers. The user has named the library, and
        // trusts it like any program that the user starts. The path has a `/`, so no other library
        // is found.
        let loaded = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let loaded =
            loaded.map_err(|error| refused(path, "cannot be loaded").with_source(error))?;
        // Unloading would take the code from under threads that the store has left behind.
        let library: &'static Library = Box::leak(Box::new(loaded));
        let version: VersionFunction = function(library, path, "esker_driver_version")?;
        // SAFETY: every version of the interface has this function, with this signature.
        let version = unsafe { version() };
        if version != DRIVER_VERSION {
            let what = format!(
                "the driver has version {version} of the interface, and this esker has version \
                 {DRIVER_VERSION}; build the driver with this esker's peers/key-value-driver.h"
            );
            return Err(refused(path, what));
        }
        let functions = DriverFunctions {
            describe: function(library, path, "esker_driver_describe")?,
            open: function(library, path, "esker_driver_open")?,
            close: function(library, path, "esker_driver_close")?,
            destroy: function(library, path, "esker_driver_destroy")?,
            put: function(library, path, "esker_driver_put")?,
            get: function(library, path, "esker_driver_get")?,
            remove: function(library, path, "esker_driver_remove")?,
            scan: function(library, path, "esker_driver_scan")?,
        };
        Ok(Self { path: path.to_owned(), functions })
    }

    /// The store's name, version and settings, in one line.
    ///
    /// # Errors
    /// `Invalid` for options that the driver does not have.
    pub fn describe(&self, options: &str, durability: KeyValueDurability) -> Result<String> {
        let options = c_string(options.as_bytes())?;
        let mut text = [0_u8; DESCRIPTION_BYTES];
        let mut message = DriverMessage::new();
        // SAFETY: `load` has checked the version. The string ends with a zero byte, and the
        // pointers and the length are those of buffers that live until the function returns.
        let status = unsafe {
            (self.functions.describe)(
                options.as_ptr(),
                durability as i32,
                text.as_mut_ptr().cast(),
                text.len(),
                &raw mut message,
            )
        };
        checked(status, &message).map_err(|error| error.within(self.path.display()))?;
        Ok(printable(&text))
    }

    /// Opens the database in `directory`; makes one there if `is_new`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Unavailable` if another process has it open; else as the
    /// driver says.
    pub fn open(
        &self,
        directory: &Path,
        options: &str,
        durability: KeyValueDurability,
        is_new: bool,
    ) -> Result<OpenDatabase> {
        let path = c_string(directory.as_os_str().as_bytes())?;
        let options = c_string(options.as_bytes())?;
        let mut handle = std::ptr::null_mut();
        let mut message = DriverMessage::new();
        // SAFETY: as in `describe`; `handle` is written before the function returns.
        let status = unsafe {
            (self.functions.open)(
                path.as_ptr(),
                options.as_ptr(),
                durability as i32,
                i32::from(is_new),
                &raw mut handle,
                &raw mut message,
            )
        };
        let opened = checked(status, &message);
        opened.map_err(|error| error.within(directory.display()))?;
        if handle.is_null() {
            return Err(refused(&self.path, "the driver opened a database and gave no handle"));
        }
        Ok(OpenDatabase { functions: self.functions, handle })
    }

    /// Removes the files of the database in `directory`, which is closed.
    ///
    /// # Errors
    /// As the driver says.
    pub fn destroy(&self, directory: &Path) -> Result<()> {
        let path = c_string(directory.as_os_str().as_bytes())?;
        let mut message = DriverMessage::new();
        // SAFETY: as in `describe`.
        let status = unsafe { (self.functions.destroy)(path.as_ptr(), &raw mut message) };
        checked(status, &message).map_err(|error| error.within(directory.display()))
    }
}

/// An open database; closed when dropped.
#[derive(Debug)]
pub struct OpenDatabase {
    functions: DriverFunctions,
    /// Null once closed.
    handle: *mut c_void,
}

// SAFETY: the interface lets any thread use and close a handle.
unsafe impl Send for OpenDatabase {}
// SAFETY: the interface lets several threads put, get, remove and scan at once; `close` and `drop`
// have the database to themselves.
unsafe impl Sync for OpenDatabase {}

impl OpenDatabase {
    /// Puts `value` under `key`, in the place of one that is there.
    ///
    /// # Errors
    /// As the driver says.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut message = DriverMessage::new();
        // SAFETY: the handle is open, and pointers and lengths are those of slices.
        let status = unsafe {
            (self.functions.put)(
                self.handle,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &raw mut message,
            )
        };
        checked(status, &message)
    }

    /// Reads the beginning of the value of `key` into `buffer` and returns the length of the whole
    /// value; `None` if there is no such key.
    ///
    /// # Errors
    /// `TooLarge` for a value that is larger than any object; else as the driver says.
    pub fn get(&self, key: &[u8], buffer: &mut [u8]) -> Result<Option<usize>> {
        let mut message = DriverMessage::new();
        let mut value_bytes = 0;
        // SAFETY: as in `put`; the driver writes at most `buffer.len()` bytes.
        let status = unsafe {
            (self.functions.get)(
                self.handle,
                key.as_ptr().cast(),
                key.len(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut value_bytes,
                &raw mut message,
            )
        };
        if status == NOT_FOUND {
            return Ok(None);
        }
        checked(status, &message)?;
        if value_bytes as u64 > OBJECT_BYTES_MAX {
            let what = format!("has {value_bytes} bytes, more than any object of the workbench");
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(Some(value_bytes))
    }

    /// Removes `key`, if it is there.
    ///
    /// # Errors
    /// As the driver says.
    pub fn remove(&self, key: &[u8]) -> Result<()> {
        let mut message = DriverMessage::new();
        // SAFETY: as in `put`.
        let status = unsafe {
            (self.functions.remove)(self.handle, key.as_ptr().cast(), key.len(), &raw mut message)
        };
        checked(status, &message)
    }

    /// Passes the keys that begin with `prefix` and are not less than `first` to `visit`, until it
    /// breaks. It gets one byte more than [`KEY_BYTES_MAX`] of longer keys, and must not panic.
    ///
    /// # Errors
    /// As the driver says; `Corrupt` for a key at the null address.
    pub fn scan(
        &self,
        prefix: &[u8],
        first: &[u8],
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut message = DriverMessage::new();
        let mut state = ScanState { visit, is_over: false, is_broken: false };
        // SAFETY: as in `put`; the driver calls the visitor with the state, from this thread and
        // before it returns.
        let status = unsafe {
            (self.functions.scan)(
                self.handle,
                prefix.as_ptr().cast(),
                prefix.len(),
                first.as_ptr().cast(),
                first.len(),
                visit_key,
                (&raw mut state).cast(),
                &raw mut message,
            )
        };
        if state.is_broken {
            return Err(Error::new(Kind::Corrupt, "the driver passed a key that is nowhere"));
        }
        checked(status, &message)
    }

    /// Closes the database.
    ///
    /// # Errors
    /// As the driver says; the database is closed in any case.
    pub fn close(mut self) -> Result<()> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return Ok(());
        }
        let mut message = DriverMessage::new();
        // SAFETY: the handle is open, no other call has it, and none will.
        let status = unsafe { (self.functions.close)(handle, &raw mut message) };
        checked(status, &message)
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        let _ = self.close_once();
    }
}

/// The state of a scan's visitor between two keys.
struct ScanState<'a> {
    visit: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    /// True once the scan should end: a driver may ignore that.
    is_over: bool,
    is_broken: bool,
}

/// Passes a key of a driver on.
///
/// # Safety
/// `context` is a [`ScanState`] that nothing else uses, and `key` has `key_bytes` bytes.
unsafe extern "C" fn visit_key(
    context: *mut c_void,
    key: *const c_void,
    key_bytes: usize,
    _value_bytes: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let state = unsafe { &mut *context.cast::<ScanState<'_>>() };
    if key.is_null() {
        state.is_broken = true;
        state.is_over = true;
    }
    if state.is_over {
        return 1;
    }
    // SAFETY: the caller's promise; the slice is bounded, for any length.
    let key = unsafe { std::slice::from_raw_parts(key.cast(), key_bytes.min(KEY_BYTES_MAX + 1)) };
    state.is_over = (state.visit)(key).is_break();
    i32::from(state.is_over)
}

/// The function `name` of a library.
fn function<F: Copy + 'static>(library: &'static Library, path: &Path, name: &str) -> Result<F> {
    const { assert!(size_of::<F>() == size_of::<fn()>()) };
    let symbol = c_string(name.as_bytes())?;
    // SAFETY: a library that has a function of this name and version declares it as the header
    // does, whose declarations are the types here. The library stays loaded.
    let found = unsafe { library.get::<F>(symbol.as_bytes_with_nul()) };
    found.map(|function| *function).map_err(|error| {
        let what = format!(
            "not a driver of a key-value store: it lacks {name} (peers/key-value-driver.h)"
        );
        refused(path, what).with_source(error)
    })
}

fn refused(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Invalid, format!("{}: {what}", path.display()))
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::new(Kind::Invalid, "a zero byte in a path or an option"))
}

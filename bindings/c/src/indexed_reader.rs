// SPDX-License-Identifier: Apache-2.0
//! Indexed reader: readers of indexed directories.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

use esker::{Dir, IndexedDir, IndexedValue, RecordLayout, Result};

use crate::arguments::{bytes, invalid, path, put, put_new, put_optional, slice_mut};
use crate::boundary::{call, count};
use crate::handle::{Handle, handle_kind};

handle_kind!(IndexedDir, 10, "indexed directory");

/// The cache of a reader whose caller does not give a size.
const CACHE_BYTES: u64 = 64 << 20;

/// More threads than this gain nothing.
const THREADS_MAX: u32 = 256;

/// The values of some keys.
pub struct IndexedAnswers {
    values: Vec<CIndexedValue>,
    /// By key: the index of its first value, and the number of all at the end.
    starts: Vec<usize>,
    /// The memory to which the values point.
    _answers: Vec<Vec<IndexedValue>>,
}

// SAFETY: the pointers refer to bytes that the answers own and nobody changes.
unsafe impl Send for IndexedAnswers {}
// SAFETY: as above.
unsafe impl Sync for IndexedAnswers {}

handle_kind!(IndexedAnswers, 11, "answers");

/// `esker_imd_value`.
#[repr(C)]
pub struct CIndexedValue {
    pub(crate) bytes: *const c_void,
    pub(crate) bytes_count: usize,
    pub(crate) epoch: u32,
    pub(crate) reserved: u32,
}

impl IndexedAnswers {
    fn new(answers: Vec<Vec<IndexedValue>>) -> Self {
        let (mut values, mut starts) = (Vec::new(), Vec::new());
        for answer in &answers {
            starts.push(values.len());
            values.extend(answer.iter().map(|value| CIndexedValue {
                bytes: value.bytes.as_ptr().cast(),
                bytes_count: value.bytes.len(),
                epoch: value.epoch,
                reserved: 0,
            }));
        }
        starts.push(values.len());
        Self { values, starts, _answers: answers }
    }
}

/// `esker_imd_info`.
#[repr(C)]
pub struct CIndexedInfo {
    pub(crate) epochs: u64,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_open(
    at: Handle<Dir>,
    name: *const c_char,
    cache_bytes: u64,
    reader: *mut Handle<IndexedDir>,
) -> c_int {
    call(|| unsafe {
        put_new(reader, || {
            let name = path(name, "path")?;
            let cache_bytes = if cache_bytes == 0 { CACHE_BYTES } else { cache_bytes };
            at.with(|at| at.open_indexed(name, cache_bytes))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_info_of(
    reader: Handle<IndexedDir>,
    info: *mut CIndexedInfo,
) -> c_int {
    call(|| unsafe {
        let known = reader.with(|reader| {
            let (key_bytes, value_bytes) = match reader.record_layout() {
                RecordLayout::Fixed { key_bytes, value_bytes } => (key_bytes.into(), value_bytes),
                RecordLayout::Variable => (0, 0),
            };
            let epochs = reader.steps()?.len() as u64;
            Ok(CIndexedInfo { epochs, key_bytes, value_bytes })
        })?;
        put(info, known, "info")
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_steps(
    reader: Handle<IndexedDir>,
    steps: *mut u64,
    steps_count: usize,
) -> i64 {
    count(|| unsafe {
        let target = slice_mut(steps, steps_count, "steps")?;
        let known = reader.with(IndexedDir::steps)?;
        for (target, step) in target.iter_mut().zip(&known) {
            *target = *step;
        }
        Ok(known.len() as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_get(
    reader: Handle<IndexedDir>,
    key: *const c_void,
    key_bytes: usize,
    answers: *mut Handle<IndexedAnswers>,
) -> c_int {
    call(|| unsafe {
        put_new(answers, || {
            let key = bytes(key, key_bytes, "key")?;
            let found = reader.with(|reader| reader.get(key))?;
            Ok(IndexedAnswers::new(vec![found]))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_get_many(
    reader: Handle<IndexedDir>,
    keys: *const c_void,
    key_bytes: usize,
    keys_count: usize,
    first_epoch: u32,
    epochs_count: u32,
    threads: u32,
    answers: *mut Handle<IndexedAnswers>,
) -> c_int {
    call(|| unsafe {
        put_new(answers, || {
            if key_bytes == 0 {
                return Err(invalid("key_bytes is 0"));
            }
            let total = keys_count.checked_mul(key_bytes);
            let total = total.ok_or_else(|| invalid("keys_count: too many"))?;
            let keys: Vec<&[u8]> = bytes(keys, total, "keys")?.chunks_exact(key_bytes).collect();
            let found = reader.with(|reader| {
                let epochs = epochs_of(reader, first_epoch, epochs_count)?;
                reader.get_many(&keys, epochs, threads.clamp(1, THREADS_MAX) as usize)
            })?;
            Ok(IndexedAnswers::new(found))
        })
    })
}

/// `count` epochs from `first`; all from there if it is 0.
fn epochs_of(reader: &IndexedDir, first: u32, count: u32) -> Result<Range<u32>> {
    let known = u32::try_from(reader.steps()?.len()).unwrap_or(u32::MAX);
    let end = if count == 0 { known } else { first.saturating_add(count).min(known) };
    Ok(first.min(end)..end)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_values(
    answers: Handle<IndexedAnswers>,
    key_index: usize,
    values: *mut *const CIndexedValue,
    values_count: *mut usize,
) -> c_int {
    call(|| unsafe {
        let (start, found) = answers.with(|answers| {
            let ends = answers.starts.get(key_index).zip(answers.starts.get(key_index + 1));
            let (start, end) = ends.ok_or_else(|| {
                let what = format!("answers: {} keys, no {key_index}", answers.starts.len() - 1);
                invalid(what)
            })?;
            Ok((answers.values.as_ptr().add(*start), end - start))
        })?;
        put_optional(values, start);
        put(values_count, found, "values_count")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_imd_answers_close(answers: Handle<IndexedAnswers>) -> c_int {
    call(|| answers.take().map(drop))
}

/// `esker_record_function`.
type RecordFunction = unsafe extern "C" fn(
    argument: *mut c_void,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
) -> c_int;

fn visitor(
    visit: Option<RecordFunction>,
    argument: *mut c_void,
) -> Result<impl FnMut(&[u8], &[u8]) -> Result<bool>> {
    let visit = visit.ok_or_else(|| invalid("visit is NULL"))?;
    Ok(move |key: &[u8], value: &[u8]| {
        let (key, key_bytes) = (key.as_ptr().cast(), key.len());
        // SAFETY: the function is the caller's, and is called as the header says.
        let wants_to_stop =
            unsafe { visit(argument, key, key_bytes, value.as_ptr().cast(), value.len()) };
        Ok(wants_to_stop == 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_scan(
    reader: Handle<IndexedDir>,
    epoch: u32,
    visit: Option<RecordFunction>,
    argument: *mut c_void,
) -> c_int {
    call(|| {
        let visit = visitor(visit, argument)?;
        reader.with(|reader| reader.scan(epoch, visit))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_imd_range(
    reader: Handle<IndexedDir>,
    epoch: u32,
    first_key: *const c_void,
    first_key_bytes: usize,
    last_key: *const c_void,
    last_key_bytes: usize,
    visit: Option<RecordFunction>,
    argument: *mut c_void,
) -> c_int {
    call(|| unsafe {
        let first = bytes(first_key, first_key_bytes, "first_key")?;
        let last = bytes(last_key, last_key_bytes, "last_key")?;
        let visit = visitor(visit, argument)?;
        reader.with(|reader| reader.range(first..=last, epoch, visit))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_imd_close(reader: Handle<IndexedDir>) -> c_int {
    call(|| reader.take().map(drop))
}

// SPDX-License-Identifier: Apache-2.0
//! Session: trees that a caller writes, and the ways in which they end.

use std::ffi::{c_char, c_int};

use esker::{Dir, Durability, JobId, Repository, Result, Session, SessionBuilder};

use crate::arguments::{
    invalid, optional_text, path, put_new, put_optional, put_text, text, texts,
};
use crate::boundary::call;
use crate::handle::{Handle, handle_kind};
use crate::namespace::CTransferCounts;
use crate::options::{COptions, read_options};
use crate::repository::{IdText, put_set};

handle_kind!(Session, 4, "session");

/// `ESKER_REPLACE`.
const REPLACE: c_int = 1;

/// `esker_session_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSessionOptions {
    pub(crate) struct_size: usize,
    pub(crate) bases: *const *const c_char,
    pub(crate) bases_count: usize,
    pub(crate) durability: c_int,
    pub(crate) take_over: c_int,
    pub(crate) memory_bytes: u64,
    pub(crate) job: *const c_char,
    pub(crate) rank: u32,
    pub(crate) properties_count: u32,
    pub(crate) properties: *const *const c_char,
    pub(crate) insertable: c_int,
    pub(crate) reserved: c_int,
}

// SAFETY: integers and pointers, which may be null.
unsafe impl COptions for CSessionOptions {}

/// The durability of `ESKER_PRIVATE` (none), `ESKER_NONE`, `ESKER_ASYNC` or `ESKER_ALWAYS`.
pub fn durability(number: c_int) -> Result<Option<Durability>> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(Durability::None)),
        2 => Ok(Some(Durability::Async)),
        3 => Ok(Some(Durability::Always)),
        _ => Err(invalid(format!("there is no durability {number}"))),
    }
}

unsafe fn builder(repository: &Repository, options: &CSessionOptions) -> Result<SessionBuilder> {
    // SAFETY: as the caller promises.
    let (job, bases, properties) = unsafe {
        let pairs = (options.properties_count as usize).saturating_mul(2);
        (
            optional_text(options.job, "job")?,
            texts(options.bases, options.bases_count, "bases")?,
            texts(options.properties, pairs, "properties")?,
        )
    };
    let mut builder = match job {
        Some(job) => repository.job(job.parse::<JobId>()?).part(options.rank),
        None => repository.session(),
    };
    for base in bases {
        builder = builder.on(base);
    }
    if let Some(durability) = durability(options.durability)? {
        builder = builder.resumable(durability);
    }
    if options.memory_bytes != 0 {
        builder = builder.memory_bytes(usize::try_from(options.memory_bytes).unwrap_or(usize::MAX));
    }
    if options.insertable != 0 {
        builder = builder.insertable();
    }
    if options.take_over != 0 {
        builder = builder.take_over();
    }
    for pair in properties.chunks_exact(2) {
        builder = builder.property(pair[0], pair[1]);
    }
    Ok(builder)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_begin(
    repository: Handle<Repository>,
    options: *const CSessionOptions,
    session: *mut Handle<Session>,
) -> c_int {
    call(|| unsafe {
        put_new(session, || {
            let options = read_options(options, "options")?;
            repository.with(|repository| builder(repository, &options)?.begin())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_resume(
    repository: Handle<Repository>,
    id: *const c_char,
    options: *const CSessionOptions,
    session: *mut Handle<Session>,
) -> c_int {
    call(|| unsafe {
        put_new(session, || {
            let options = read_options(options, "options")?;
            if !options.bases.is_null() || !options.job.is_null() || options.properties_count > 0 {
                let what = "a session that is resumed keeps its bases, its job and its properties";
                return Err(invalid(what));
            }
            let id = text(id, "id")?;
            let set = id.strip_prefix('@').unwrap_or(id).parse()?;
            repository.with(|repository| builder(repository, &options)?.resume(set))
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_id(session: Handle<Session>, id: *mut IdText) -> c_int {
    call(|| unsafe {
        let set = session.with(|session| Ok(session.id()))?;
        put_text(id, &set.to_string(), "id")
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_root(
    session: Handle<Session>,
    root: *mut Handle<Dir>,
) -> c_int {
    call(|| unsafe { put_new(root, || session.with(|session| Ok(session.root().clone()))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_import(
    session: Handle<Session>,
    source: *const c_char,
    target: *const c_char,
    counts: *mut CTransferCounts,
) -> c_int {
    call(|| unsafe {
        let (source, target) = (path(source, "source")?, path(target, "target")?);
        let done = session.with(|session| session.import(source, target))?;
        put_optional(counts, CTransferCounts::new(&done));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_session_sync(session: Handle<Session>) -> c_int {
    call(|| session.with(Session::sync))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_session_flush(session: Handle<Session>) -> c_int {
    call(|| session.with(Session::flush))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_snapshot(
    session: Handle<Session>,
    name: *const c_char,
    id: *mut IdText,
) -> c_int {
    call(|| unsafe {
        let name = text(name, "name")?;
        put_set(id, session.with(|session| session.snapshot(name))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_publish(
    session: Handle<Session>,
    name: *const c_char,
    flags: c_int,
    id: *mut IdText,
) -> c_int {
    call(|| unsafe {
        let name = text(name, "name")?;
        let set = session.with(|session| match flags {
            0 => session.publish(name),
            REPLACE => session.publish_replacing(name).map(|_| session.id()),
            _ => Err(invalid(format!("there are no flags {flags:#x}"))),
        })?;
        put_set(id, set);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_complete(
    session: Handle<Session>,
    id: *mut IdText,
) -> c_int {
    call(|| unsafe {
        put_set(id, session.with(Session::complete)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn esker_session_suspend(session: Handle<Session>, id: *mut IdText) -> c_int {
    call(|| unsafe {
        put_set(id, session.with(Session::suspend)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_session_abandon(session: Handle<Session>) -> c_int {
    call(|| session.take()?.owned("session")?.map_or(Ok(()), Session::abandon))
}

#[unsafe(no_mangle)]
pub extern "C" fn esker_session_close(session: Handle<Session>) -> c_int {
    call(|| session.take().map(drop))
}

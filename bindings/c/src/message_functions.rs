// SPDX-License-Identifier: Apache-2.0
//! Message functions: ranks whose messages go through functions of the caller, such as those that
//! `esker_mpi.h` makes of an MPI communicator.

use std::ffi::{c_int, c_void};

use esker::{Error, Kind, Rank, Result};
use esker_comm::polled::MessagePassing;
use esker_comm::transport::MESSAGE_BYTES_MAX;
use esker_comm::{Channel, NodeMap};

use crate::arguments::{invalid, slice};
use crate::options::COptions;

/// Maximum number of ranks, which bounds the map of their nodes.
const RANKS_MAX: u32 = 1 << 24;

type StartSend = unsafe extern "C" fn(
    context: *mut c_void,
    to: u32,
    tag: u32,
    bytes: *const c_void,
    bytes_count: usize,
    request: *mut *mut c_void,
) -> c_int;
type TestSend = unsafe extern "C" fn(*mut c_void, request: *mut c_void, done: *mut c_int) -> c_int;
type Probe = unsafe extern "C" fn(
    context: *mut c_void,
    tag: u32,
    found: *mut c_int,
    from: *mut u32,
    bytes_count: *mut usize,
    message: *mut *mut c_void,
) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, *mut c_void, bytes: *mut c_void, usize) -> c_int;
type Release = unsafe extern "C" fn(context: *mut c_void);

/// `esker_message_functions`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CMessageFunctions {
    pub(crate) struct_size: usize,
    pub(crate) context: *mut c_void,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) nodes: *const u32,
    pub(crate) start_send: Option<StartSend>,
    pub(crate) test_send: Option<TestSend>,
    pub(crate) probe: Option<Probe>,
    pub(crate) receive: Option<Receive>,
    pub(crate) release: Option<Release>,
}

// SAFETY: integers, and pointers and functions that may be null.
unsafe impl COptions for CMessageFunctions {}

/// The context of the caller's functions, released when nothing uses it any more.
pub struct CallerContext {
    context: *mut c_void,
    release: Option<Release>,
}

impl Drop for CallerContext {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller gave it for this, and no function is called afterwards.
            unsafe { release(self.context) };
        }
    }
}

impl CMessageFunctions {
    /// The context, which is released even if no communicator is made.
    pub fn context(&self) -> CallerContext {
        CallerContext { context: self.context, release: self.release }
    }
}

/// The functions of a communicator; none is null.
pub struct MessageFunctions {
    context: CallerContext,
    size: u32,
    start_send: StartSend,
    test_send: TestSend,
    probe: Probe,
    receive: Receive,
}

// SAFETY: the caller uses a communicator from one thread at a time, and says so to its own library.
unsafe impl Send for MessageFunctions {}

/// A send that the caller's library has begun.
pub struct SendRequest(*mut c_void);

// SAFETY: as for `MessageFunctions`.
unsafe impl Send for SendRequest {}

impl MessageFunctions {
    /// Checks the functions and returns them with the rank and the nodes.
    pub unsafe fn new(
        given: &CMessageFunctions,
        context: CallerContext,
    ) -> Result<(Self, Rank, NodeMap)> {
        let missing = |name: &str| invalid(format!("functions: {name} is NULL"));
        if given.rank >= given.size || given.size > RANKS_MAX {
            let what = format!(
                "functions: rank {} of {}; a job has 1 to {RANKS_MAX}",
                given.rank, given.size
            );
            return Err(invalid(what));
        }
        let functions = Self {
            context,
            size: given.size,
            start_send: given.start_send.ok_or_else(|| missing("start_send"))?,
            test_send: given.test_send.ok_or_else(|| missing("test_send"))?,
            probe: given.probe.ok_or_else(|| missing("probe"))?,
            receive: given.receive.ok_or_else(|| missing("receive"))?,
        };
        let nodes = if given.nodes.is_null() {
            NodeMap::even(given.size, given.size)?
        } else {
            // SAFETY: the caller gives a number for each rank.
            NodeMap::of_labels(unsafe { slice(given.nodes, given.size as usize, "nodes")? })?
        };
        Ok((functions, Rank(given.rank), nodes))
    }
}

fn check(code: c_int, function: &str) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let what = format!("the message function {function} failed with {code}");
    Err(Error::new(Kind::Unavailable, what))
}

impl MessagePassing for MessageFunctions {
    type Request = SendRequest;

    unsafe fn start_send(
        &mut self,
        to: Rank,
        channel: Channel,
        bytes: &'static [u8],
    ) -> Result<SendRequest> {
        let mut request = std::ptr::null_mut();
        // SAFETY: the function is the caller's, and is called as the header says.
        let code = unsafe {
            (self.start_send)(
                self.context.context,
                to.0,
                channel.0.into(),
                bytes.as_ptr().cast(),
                bytes.len(),
                &raw mut request,
            )
        };
        check(code, "start_send").map(|()| SendRequest(request))
    }

    fn test(&mut self, request: SendRequest) -> Result<Option<SendRequest>> {
        let mut done = 0;
        // SAFETY: the request is one of `start_send` that was not done before.
        let code = unsafe { (self.test_send)(self.context.context, request.0, &raw mut done) };
        check(code, "test_send")?;
        Ok((done == 0).then_some(request))
    }

    fn receive(&mut self, channel: Channel) -> Result<Option<(Rank, Vec<u8>)>> {
        let (mut found, mut from, mut size, mut message) = (0, 0, 0, std::ptr::null_mut());
        // SAFETY: the function is the caller's, and is called as the header says.
        let code = unsafe {
            (self.probe)(
                self.context.context,
                channel.0.into(),
                &raw mut found,
                &raw mut from,
                &raw mut size,
                &raw mut message,
            )
        };
        check(code, "probe")?;
        if found == 0 {
            return Ok(None);
        }
        if size > MESSAGE_BYTES_MAX || from >= self.size {
            let what = format!("rank {from} sent a message of {size} bytes on {channel}");
            return Err(Error::new(Kind::Corrupt, what));
        }
        let mut bytes = vec![0; size];
        // SAFETY: the message is the one that was found, and the buffer has room for it.
        let code = unsafe {
            (self.receive)(self.context.context, message, bytes.as_mut_ptr().cast(), size)
        };
        check(code, "receive")?;
        Ok(Some((Rank(from), bytes)))
    }
}

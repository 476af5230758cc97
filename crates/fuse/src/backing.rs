// SPDX-License-Identifier: Apache-2.0
//! Backing: a file of the store that the kernel reads or writes directly (passthrough).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use fuser::BackingId;
use rustix::ioctl::{Setter, ioctl, opcode};

/// A file of the store that is registered with the kernel for as long as this lives.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Registered by the FUSE library, whose replies take nothing else.
    OfLibrary(BackingId),
    /// Registered here.
    Own(OwnBacking),
}

/// A file that was registered on the mount's device.
#[derive(Debug)]
pub(crate) struct OwnBacking {
    device: Weak<OwnedFd>,
    id: u32,
}

impl Backing {
    /// Registers `file` with the kernel.
    pub(crate) fn register(device: &Arc<OwnedFd>, file: &File) -> io::Result<Self> {
        let id = BackingId::create_raw(device, file)?;
        Ok(Self::Own(OwnBacking { device: Arc::downgrade(device), id }))
    }

    /// The id for a reply of ours.
    pub(crate) fn id(&self) -> Option<u32> {
        match self {
            Self::OfLibrary(_) => None,
            Self::Own(own) => Some(own.id),
        }
    }
}

impl Drop for OwnBacking {
    fn drop(&mut self) {
        const CLOSE: rustix::ioctl::Opcode = opcode::write::<u32>(229, 2);
        if let Some(device) = self.device.upgrade() {
            // SAFETY: `FUSE_DEV_IOC_BACKING_CLOSE` reads a number of 32 bits.
            // It fails only once the mount is gone, and the file with it.
            let _ = unsafe { ioctl(device.as_fd(), Setter::<CLOSE, u32>::new(self.id)) };
        }
    }
}

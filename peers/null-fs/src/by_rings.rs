// SPDX-License-Identifier: Apache-2.0
//! The null file system behind the rings of Esker's mounts, so that a ratio shows the cost of Esker.
//! The threads of the rings answer all requests: nothing here waits.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use esker_fuse_ring::{
    Answer, Answerer, Listing, Operation, Request, RingOptions, RingRefusal, Rings,
};
use fuser::{Config, Errno, FileType, Session};

use crate::{NOTHING, NullFs, Tree, open_flags};

/// Serves `null` at `mountpoint` until it is unmounted.
pub fn serve(null: NullFs, mountpoint: &str, config: &Config, helpers: usize) -> io::Result<()> {
    let refused = |RingRefusal(reason)| io::Error::other(reason);
    let rings = Rings::prepare(RingOptions { payload_bytes: 1 << 20, helpers }).map_err(refused)?;
    let session = Session::new(null.clone(), mountpoint, config)?;
    let device = Arc::new(session.as_fd().try_clone_to_owned()?);
    let answerer: Arc<dyn Answerer> = Arc::new(null);
    rings.start(&device, &answerer).map_err(refused)?;
    let served = rings.serve(device, answerer);
    // Dropping it would unmount what is beneath.
    std::mem::forget(session);
    served
}

impl Answerer for NullFs {
    fn is_quick(&self, _: &Request<'_>) -> bool {
        true
    }

    fn answer(&self, request: &Request<'_>) -> Result<Answer, Errno> {
        let tree = &mut *self.tree.lock().expect("nobody panics");
        let node = request.node;
        match request.operation {
            Operation::LookUp { name } => {
                let found = tree.find(node, OsStr::from_bytes(name));
                Ok(Answer::Entry(found.copied().unwrap_or(NOTHING)))
            }
            Operation::GetAttr => {
                let node = tree.nodes.get(&node).ok_or(Errno::ENOENT)?;
                Ok(Answer::Attr(node.attr))
            }
            Operation::SetAttr(changes) => {
                let node = tree.nodes.get_mut(&node).ok_or(Errno::ENOENT)?;
                if let Some(mode) = changes.mode {
                    node.attr.perm = (mode & 0o7777) as u16;
                }
                if let Some(size) = changes.size {
                    node.data.resize(size as usize, 0);
                    node.attr.size = size;
                }
                Ok(Answer::Attr(node.attr))
            }
            Operation::MkDir { name, mode } => {
                make(tree, request, FileType::Directory, mode, name).map(Answer::Entry)
            }
            Operation::Create { name, mode, .. } => {
                let attr = make(tree, request, FileType::RegularFile, mode, name)?;
                Ok(Answer::Created(attr, open_flags().bits(), 0))
            }
            Operation::Unlink { name } | Operation::RmDir { name } => {
                let number = tree.take(node, OsStr::from_bytes(name))?;
                tree.nodes.remove(&number);
                Ok(Answer::Empty)
            }
            Operation::Rename { name, new_parent, new_name, .. } => {
                let new_name = OsStr::from_bytes(new_name);
                let number = tree.take(node, OsStr::from_bytes(name))?;
                if let Ok(replaced) = tree.take(new_parent, new_name) {
                    tree.nodes.remove(&replaced);
                }
                tree.put(new_parent, new_name, number).map(|()| Answer::Empty)
            }
            Operation::Open { .. } => Ok(Answer::Opened(0, open_flags().bits(), 0)),
            Operation::Read { offset, size } => {
                let data = &tree.nodes.get(&node).ok_or(Errno::ENOENT)?.data;
                let start = data.len().min(offset as usize);
                let end = data.len().min(start + size as usize);
                Ok(Answer::Data(data[start..end].to_vec().into()))
            }
            Operation::Write { offset, data, .. } => {
                tree.write(node, offset as usize, data).map(Answer::Size)
            }
            Operation::ReadDir { cookie, size, with_attributes, .. } => {
                list(tree, node, cookie, Listing::new(size), with_attributes)
            }
            Operation::Release | Operation::Fsync => Ok(Answer::Empty),
            Operation::StatFs => Ok(Answer::Room(1 << 30, 1 << 30, 1 << 30)),
            // Also `flush` and `opendir`: the kernel does not ask again.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}
}

fn make(
    tree: &mut Tree,
    request: &Request<'_>,
    kind: FileType,
    mode: u32,
    name: &[u8],
) -> Result<fuser::FileAttr, Errno> {
    let attr = tree.make(kind, mode, (request.uid, request.gid));
    tree.put(request.node, OsStr::from_bytes(name), attr.ino.0)?;
    Ok(attr)
}

fn list(
    tree: &Tree,
    node: u64,
    cookie: u64,
    mut listing: Listing,
    with_attributes: bool,
) -> Result<Answer, Errno> {
    let dir = tree.nodes.get(&node).ok_or(Errno::ENOENT)?;
    for (place, entry) in dir.entries.iter().enumerate().skip(cookie as usize) {
        let Some((name, child)) = entry else { continue };
        let (attr, next) = (&tree.nodes[child].attr, place as u64 + 1);
        let has_room = match with_attributes {
            true => listing.add_with_attributes(attr, next, name.as_bytes()),
            false => listing.add(*child, next, attr.kind, name.as_bytes()),
        };
        if !has_room {
            break;
        }
    }
    Ok(listing.into())
}

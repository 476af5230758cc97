// SPDX-License-Identifier: Apache-2.0
//! Mounts of stores that no session wrote, without the kernel: every request ends, none panics, and the
//! kernel gets no name that it would refuse.

use std::io;
use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::random::Random;
use esker_fs::inode::FileKind;
use esker_fs::ops::RenameFlags;
use esker_fs::session::SessionOptions;
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::identity::Identity;
use fuser::{FileType, WriteFlags};
use rustix::fs::OFlags;

use crate::choices::Choices;
use crate::listing::{EntrySink, OpenListing, ShownEntry};
use crate::make::{Caller, CreateRequest};
use crate::mount_state::MountState;
use crate::node_table::ROOT;
use crate::stores;
use crate::test_state::state_of;

const SEEDS: u64 = 600;
/// Most entries that are visited in a mount, and the deepest directory that is entered: the kernel
/// follows loops as long as a program does.
const VISITS_MAX: usize = 400;
const DEPTH_MAX: usize = 6;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// Most batches of a directory.
const BATCHES_MAX: usize = 100;

/// The names of a listing, with the cookie of the last.
#[derive(Default)]
struct ListedNames {
    names: Vec<Vec<u8>>,
    cookie: u64,
}

impl EntrySink for ListedNames {
    const WITH_ATTRIBUTES: bool = false;

    fn put(&mut self, cookie: u64, name: &[u8], _: ShownEntry) -> bool {
        assert!(cookie > self.cookie, "a listing goes on");
        self.cookie = cookie;
        self.names.push(name.to_vec());
        true
    }
}

/// Lists the directory `number` to its end, or to its first record that is refused.
fn list(state: &MountState, number: u64) -> Vec<Vec<u8>> {
    let mut listed = ListedNames::default();
    let Ok(node) = state.node(number) else { return listed.names };
    let listing = OpenListing::new(node, None);
    for _ in 0..BATCHES_MAX {
        let cookie = listed.cookie;
        if state.list(&listing, cookie, &mut listed).is_err() || listed.cookie == cookie {
            break;
        }
        state.read_ahead(&listing);
    }
    listed.names.retain(|name| ![&b"."[..], b".."].contains(&&name[..]));
    for name in &listed.names {
        let is_name = !name.is_empty() && !name.contains(&b'/') && !name.contains(&0);
        assert!(is_name && name.len() <= 255, "{}", name.escape_ascii());
    }
    listed.names
}

/// Looks at everything below the directory `number`, as a program would.
fn visit(state: &MountState, number: u64, depth: usize, visits: &mut usize) {
    for name in list(state, number) {
        if *visits >= VISITS_MAX {
            return;
        }
        let Ok(Some(found)) = state.lookup(number, &name) else { continue };
        *visits += 1;
        let entry = found.ino.0;
        if let Ok(node) = state.node(entry) {
            let _ = state.attributes(&node);
        }
        let _ = state.xattr_names(entry, true);
        let _ = state.xattr(entry, b"user.a");
        match found.kind {
            FileType::Directory if depth < DEPTH_MAX => visit(state, entry, depth + 1, visits),
            FileType::Symlink => drop(state.target(entry)),
            FileType::RegularFile => read(state, entry, found.size),
            _ => {}
        }
    }
}

fn read(state: &MountState, number: u64, size: u64) {
    if state
        .open(number, OFlags::RDONLY, false, |_| Err(io::ErrorKind::Unsupported.into()))
        .is_err()
    {
        return;
    }
    for offset in [0, 100, size.saturating_sub(10), u64::MAX - 5] {
        if let Ok(bytes) = state.read(number, offset, 1 << 16) {
            assert!(bytes.len() <= 1 << 16);
        }
    }
    for whence in [SEEK_DATA, SEEK_HOLE] {
        let _ = state.seek(number, 0, whence);
    }
    let _ = state.release(number);
}

/// Changes names of all kinds; each change succeeds or is refused.
fn change(state: &MountState, choices: &mut Choices) {
    let caller = Caller { uid: 0, gid: 0 };
    for _ in 0..16 {
        let name = [b'a' + choices.u8() % 6];
        let other = [b'a' + choices.u8() % 6];
        let found = state.lookup(ROOT, &name).ok().flatten().map_or(ROOT, |found| found.ino.0);
        let _ = match choices.u8() % 8 {
            0 => state.unlink(ROOT, &name),
            1 => state.rmdir(ROOT, &name),
            2 => {
                let asked = CreateRequest::new(FileKind::Directory, 0o755);
                state.make(caller, ROOT, &name, &asked).map(drop)
            }
            3 => state.link(found, ROOT, &other).map(drop),
            4 => state.rename((ROOT, &name), (ROOT, &other), RenameFlags::Exchange),
            5 => state.rename((ROOT, &name), (found, &other), RenameFlags::Replace),
            6 => state.set_xattr(found, b"user.b", b"value", 0),
            _ => write(state, found, choices.below(10_000) as u64),
        };
    }
}

fn write(state: &MountState, number: u64, offset: u64) -> Result<(), fuser::Errno> {
    let unsupported = |_: &std::fs::File| Err(io::ErrorKind::Unsupported.into());
    state.open(number, OFlags::WRONLY, false, unsupported)?;
    let written = state.write(number, offset, b"changed", WriteFlags::empty());
    let flushed = state.flush(number);
    let released = state.release(number);
    written.and(flushed).and(released)
}

fn work_on(bytes: &[u8]) -> usize {
    let mut choices = Choices::new(bytes);
    let repository = stores::forge(&mut choices);
    let clock = Arc::new(ManualClock::new(2_000_000_000_000_000_000));
    let mut visits = 0;
    for named in repository.names().into_iter().flatten() {
        let mut below = 0;
        if let Ok(namespace) = repository.open(&[named.set], Identity::root()) {
            let state = state_of(NamespaceView::Snapshot(Arc::new(namespace)), clock.clone());
            visit(&state, ROOT, 0, &mut below);
        }
        let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
        if let Ok(session) = repository.begin(&[named.set], options) {
            let state = state_of(NamespaceView::Session(Arc::new(session)), clock.clone());
            visit(&state, ROOT, 0, &mut 0);
            change(&state, &mut choices);
            visit(&state, ROOT, 0, &mut 0);
            let _ = state.close_files();
        }
        visits += below;
    }
    visits
}

/// The records of a store are derived from its seed.
#[test]
fn hostile_stores_are_withstood() {
    let (mut visits, mut failed) = (0, Vec::new());
    for seed in 0..SEEDS {
        let mut random = Random::from_seed(seed);
        let mut bytes = vec![0; 1_000 + random.below(5_000) as usize];
        random.fill(&mut bytes);
        match std::panic::catch_unwind(|| work_on(&bytes)) {
            Ok(count) => visits += count,
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "the stores of seeds {failed:?}");
    assert!(visits as u64 > SEEDS, "{visits} entries were visited");
}

// SPDX-License-Identifier: Apache-2.0
//! A full store can be emptied: sessions can be dropped, names deleted and garbage collected even
//! if no other write succeeds.
//!
//! Symptom: on a full store `delete` and `gc` failed with `NoSpace`, like the import before them,
//! so nothing could be freed.
//! Cause: a deletion writes markers, names and manifests before it frees anything.
//! Fix: stores keep a reserve, which deletions release.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_base::store::{
    AppendLog, FaultEffect, FaultStore, MemoryStore, ObjectInfo, ObjectWriter, SharedStore, Store,
    url,
};
use esker_base::{Bytes, Error, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId, SetState};

use crate::gc::{eager, options, publish, repository, write};
use crate::input::{Mounted, url_of};
use crate::interrupted_store::Interrupted;
use crate::verify::assert_sound;

/// `EDQUOT`.
const QUOTA_EXCEEDED: i32 = 122;
/// Number of objects that fit into the reserve.
const RESERVED: u64 = 8;

/// A store whose user has exhausted a quota of inodes, except for a reserve.
struct QuotaStore {
    inner: MemoryStore,
    is_full: AtomicBool,
    left: AtomicU64,
    /// Number of objects for which room is reserved.
    reserved: AtomicU64,
}

impl fmt::Debug for QuotaStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaStore").field("left", &self.left).finish_non_exhaustive()
    }
}

impl QuotaStore {
    fn new() -> Arc<Self> {
        let (inner, left) = (MemoryStore::new(), AtomicU64::new(0));
        let (is_full, reserved) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { inner, is_full, left, reserved })
    }

    fn take(&self) -> Result<()> {
        let take = |left: u64| left.checked_sub(1);
        let fits = !self.is_full.load(Ordering::SeqCst)
            || self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        let error = std::io::Error::from_raw_os_error(QUOTA_EXCEEDED);
        if fits { Ok(()) } else { Err(Error::io(error, "put")) }
    }
}

impl Store for QuotaStore {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.take()?;
        let put = self.inner.put_if_absent(name, bytes);
        // An existing object takes no room.
        self.left.fetch_add(u64::from(put.is_err()), Ordering::SeqCst);
        put
    }
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.take()?;
        self.inner.create(name)
    }
    fn size(&self, name: &str) -> Result<u64> {
        self.inner.size(name)
    }
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.inner.get(name, bytes_max)
    }
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(name, range)
    }
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(name, ranges)
    }
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        self.take()?;
        self.inner.append_log(name)
    }
    fn sync_log(&self, name: &str) -> Result<()> {
        self.inner.sync_log(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.inner.list(prefix)
    }
    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list_names(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        let was_there = self.inner.size(name).is_ok();
        self.left.fetch_add(u64::from(was_there), Ordering::SeqCst);
        self.inner.delete(name)
    }
    fn keep_reserve(&self) {
        let fits =
            !self.is_full.load(Ordering::SeqCst) || self.left.load(Ordering::SeqCst) > 2 * RESERVED;
        if fits {
            self.reserved.store(RESERVED, Ordering::SeqCst);
        }
    }
    fn release_reserve(&self) -> bool {
        let take = |reserved: u64| reserved.checked_sub(1);
        let had = self.reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        self.left.fetch_add(u64::from(had), Ordering::SeqCst);
        had
    }
}

#[test]
fn a_store_whose_quota_is_used_up_is_emptied() {
    let quota = QuotaStore::new();
    let store: SharedStore = quota.clone();
    let plain = repository(&store);
    publish(&plain, &[], "kept").expect("publish");
    let base = publish(&plain, &[], "base").expect("publish");
    publish(&plain, &[base], "upper").expect("publish");
    let session = plain.begin(&[base], options()).expect("begin");
    write(&session, "/f", &[b'x'; 900]).expect("write");
    session.flush().expect("flush");
    quota.left.store(0, Ordering::SeqCst);
    quota.is_full.store(true, Ordering::SeqCst);
    write(&session, "/g", &[b'x'; 900]).expect("in memory");
    assert_eq!(session.flush().expect_err("full").kind(), Kind::NoSpace);
    let dropped = session.set();
    drop(session);
    assert_eq!(plain.publish(base, "other").expect_err("full").kind(), Kind::NoSpace);
    plain.abandon(dropped).expect("drop");
    for name in ["base", "upper"] {
        plain.delete(name).expect("delete");
    }
    assert_eq!(plain.gc(&eager()).expect("gc").sets.len(), 3);
    plain.publish(plain.resolve("kept").expect("kept").set, "other").expect("there is room");
    assert_sound(&plain);
}

/// Symptom: on a full store a live writer took the part of the reserve that `delete` had released,
/// and `gc` found no room to free anything.
/// Cause: a deletion released the whole reserve.
/// Fix: it releases one part at a time, as much as it needs.
#[test]
fn a_writer_between_a_deletion_and_a_collection_leaves_the_collection_room() {
    let quota = QuotaStore::new();
    let store: SharedStore = quota.clone();
    let plain = repository(&store);
    publish(&plain, &[], "a").expect("publish");
    quota.left.store(0, Ordering::SeqCst);
    quota.is_full.store(true, Ordering::SeqCst);
    plain.delete("a").expect("delete");
    // The writer takes everything that is left.
    quota.left.store(0, Ordering::SeqCst);
    assert_eq!(plain.gc(&eager()).expect("gc").sets.len(), 1);
    assert_sound(&plain);
}

/// Symptom: on a full store without a reserve `gc` ended at the first marker that it could not
/// write, and freed nothing.
/// Cause: it swept and restored markers first, and any failure ended it.
/// Fix: steps that write are deferred until other steps have freed room.
#[test]
fn a_collection_without_a_reserve_frees_what_it_can() {
    let quota = QuotaStore::new();
    let store: SharedStore = quota.clone();
    let plain = repository(&store);
    let kept = publish(&plain, &[], "kept").expect("publish");
    let session = plain.begin(&[], options()).expect("begin");
    for name in ["/f", "/g"] {
        write(&session, name, &[b'x'; 900]).expect("write");
        session.flush().expect("flush");
    }
    session.publish("two").expect("publish");
    plain.compact("two").expect("compact");
    // Sweeping the one marker and restoring the other take a write each.
    marker::hold(&*store, kept, &MarkerHolder::Set(SetId(77))).expect("hold");
    marker::release(&*store, kept, &MarkerHolder::Name("kept".into())).expect("release");
    quota.reserved.store(0, Ordering::SeqCst);
    quota.left.store(0, Ordering::SeqCst);
    quota.is_full.store(true, Ordering::SeqCst);
    let report = plain.gc(&eager()).expect("gc");
    assert_eq!((report.stale_markers, report.restored_markers), (1, 1), "{report:?}");
    assert!(report.objects >= 2, "the tables: {report:?}");
    assert_sound(&plain);
    // If nothing can be freed, it reports why.
    quota.reserved.store(0, Ordering::SeqCst);
    quota.left.store(0, Ordering::SeqCst);
    marker::release(&*store, kept, &MarkerHolder::Name("kept".into())).expect("release");
    quota.left.store(0, Ordering::SeqCst);
    assert_eq!(plain.gc(&eager()).expect_err("no room").kind(), Kind::NoSpace);
    assert!(plain.open(&[kept], Identity::root()).is_ok(), "it stays without its marker, too");
}

/// Condemns `set`, as a collection does that dies before it finds the set's marker.
fn condemn(store: &SharedStore, set: SetId) {
    let mut manifest = Manifest::load(&**store, set).expect("manifest");
    (manifest.state, manifest.epoch) = (SetState::CondemnedSealed, manifest.epoch + 1);
    manifest.claim(&**store, set, 1).expect("claim");
}

/// Symptom: in a full store a snapshot could not be opened while a collection examined it.
/// Cause: a reader that finds its set condemned restores it, and failed for lack of room, although
/// the collection was about to do so.
/// Fix: it waits for the collection, as a reader without write permission does.
#[test]
fn a_reader_in_a_full_store_waits_for_the_collection_that_condemned_its_set() {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let set = publish(&repository(&memory), &[], "n").expect("publish");
    condemn(&memory, set);
    let full = Arc::new(FaultStore::new(memory.clone(), 1));
    full.fill_at(1, FaultEffect::None);
    let plain = memory.clone();
    let collect = Box::new(move || drop(repository(&plain).gc(&eager()).expect("gc")));
    // The reader has found the set condemned several times.
    let interrupted = Interrupted::new(full, 20, collect);
    let shared: SharedStore = interrupted.clone();
    repository(&shared).open(&[set], Identity::root()).expect("open");
    assert!(interrupted.has_happened());
    assert_eq!(Manifest::load(&*memory, set).expect("manifest").state, SetState::Sealed);
}

/// As before, and the collection has died: the reader finally takes a part of the reserve, and the
/// next collection still has the rest.
#[test]
fn a_reader_in_a_full_store_restores_its_set_with_the_reserve() {
    let quota = QuotaStore::new();
    let store: SharedStore = quota.clone();
    let plain = repository(&store);
    let kept = publish(&plain, &[], "kept").expect("publish");
    publish(&plain, &[], "other").expect("publish");
    condemn(&store, kept);
    quota.is_full.store(true, Ordering::SeqCst);
    quota.left.store(0, Ordering::SeqCst);
    quota.reserved.store(0, Ordering::SeqCst);
    let refused = plain.open(&[kept], Identity::root()).map(drop).expect_err("no reserve");
    assert_eq!(refused.kind(), Kind::NoSpace);
    assert!(refused.to_string().contains("esker gc"), "{refused}");
    quota.reserved.store(RESERVED, Ordering::SeqCst);
    plain.open(&[kept], Identity::root()).expect("open");
    assert_eq!(quota.reserved.load(Ordering::SeqCst), RESERVED - 1);
    plain.delete("other").expect("delete");
    assert_eq!(plain.gc(&eager()).expect("gc").sets.len(), 1);
    assert_sound(&plain);
}

/// Symptom: `esker mount` and `esker run` could not show a snapshot of a full store.
/// Cause: the reader's marker had no room, and its failure was that of the reader.
/// Fix: the reader begins without the marker, and renewals put it once there is room.
#[test]
fn a_snapshot_of_a_full_store_is_opened_without_markers_until_there_is_room() {
    let quota = QuotaStore::new();
    let store: SharedStore = quota.clone();
    let plain = repository(&store);
    let set = publish(&plain, &[], "n").expect("publish");
    quota.is_full.store(true, Ordering::SeqCst);
    quota.left.store(0, Ordering::SeqCst);
    let (namespace, markers) = plain.open_held(&[set], Identity::root()).expect("open");
    namespace.stat(b"/", FollowLinks::Yes).expect("readable");
    let mut markers = markers.expect("markers to be renewed");
    assert_eq!(markers.renew().expect_err("still full").kind(), Kind::NoSpace);
    let is_held = || {
        let holders = marker::holders(&*store, set).expect("holders");
        holders.iter().any(|holder| matches!(holder, MarkerHolder::Reader { .. }))
    };
    assert!(!is_held());
    quota.is_full.store(false, Ordering::SeqCst);
    markers.renew().expect("room");
    assert!(is_held());
    drop(markers);
    assert!(!is_held());
}

/// Symptom: a file system of 12 MiB that an import had filled could not be emptied.
/// Cause: a store kept a reserve of 1 MiB or none, and that was more than a sixteenth of the room.
/// Fix: the reserve is smaller where there is less room.
///
/// Each round fills what the one before has freed, and is emptied with a newly made reserve.
#[test]
fn a_full_file_system_is_emptied() {
    empty_a_full_file_system("size=24m", 4 << 20);
    empty_a_full_file_system("size=9m", 1 << 20);
}

fn empty_a_full_file_system(size: &str, file_bytes: usize) {
    let Some(mounted) = Mounted::new(size) else { return };
    let store = url::init(url_of(mounted.path())).expect("a store");
    let plain = Repository::new(store);
    let base = publish(&plain, &[], "base").expect("publish");
    for round in 0..3 {
        let upper = plain.begin(&[base], options()).expect("begin");
        write(&upper, "/upper", &vec![1; file_bytes]).expect("write");
        upper.publish("upper").expect("publish");
        let session = plain.begin(&[base], options()).expect("begin");
        write(&session, "/large", &vec![1; file_bytes]).expect("write");
        session.flush().expect("flush");
        let full = write(&session, "/larger", &vec![1; 32 << 20]).and_then(|()| session.flush());
        assert_eq!(full.expect_err("full").kind(), Kind::NoSpace, "round {round}");
        // Now the file system is completely full.
        let mut rest = File::create(mounted.path().join("rest")).expect("create");
        while rest.write_all(&[1; 4096]).is_ok() {}
        let dropped = session.set();
        drop(session);
        assert_eq!(plain.publish(base, "other").expect_err("full").kind(), Kind::NoSpace);
        plain.delete("upper").expect("delete");
        if round == 1 {
            plain.abandon(dropped).expect("drop");
        }
        assert!(!plain.gc(&eager()).expect("gc").sets.is_empty(), "round {round}");
        if round != 1 {
            plain.abandon(dropped).expect("drop");
            plain.gc(&eager()).expect("gc");
        }
        std::fs::remove_file(mounted.path().join("rest")).expect("remove");
    }
    assert_sound(&plain);
}

// SPDX-License-Identifier: Apache-2.0
//! Regression tests, one for each bug found: symptom, cause, fix.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::ManualClock;
use esker_base::store::{FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::ops::{AttributeChanges, RenameFlags, XattrSet};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::object_name::ObjectFolder;
use esker_table::tree::{Durability, TreeOptions};

use crate::hooked::{HookedStore, Request, When};
use crate::operation::Content;
use crate::subject::source;

const MINUTE: Duration = Duration::from_secs(60);

fn user() -> Identity {
    Identity { uid: 1_001, gid: 2_001, groups: vec![] }
}

fn options(identity: Identity) -> SessionOptions {
    SessionOptions { identity, ..SessionOptions::default() }
}

/// Returns a session of an ordinary user above what `prepare` does as the superuser.
fn user_above(prepare: impl FnOnce(&Session)) -> Session {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    prepare(&session);
    let base = session.publish("base").expect("publish");
    repository.begin(&[base], options(user())).expect("begin")
}

/// Symptom: making a directory that exists, or removing one that does not, failed with `Denied` if
/// its parent was not writable, so that `mkdir -p` and `rm -f` failed.
/// Cause: permissions were checked before the name was looked up.
/// Fix: names are looked up first, as kernels do (`check_change`, `check_removal`).
#[test]
fn what_is_there_is_told_before_a_denial() {
    let session = user_above(|session| {
        session.mkdir(session.root(), b"taken", 0o755).expect("mkdir");
    });
    let root = session.root();
    fn kind_of<T: std::fmt::Debug>(result: esker_base::Result<T>) -> Kind {
        result.expect_err("not ours").kind()
    }
    assert_eq!(kind_of(session.mkdir(root, b"taken", 0o755)), Kind::Exists);
    assert_eq!(kind_of(session.mkdir(root, b"free", 0o755)), Kind::Denied);
    assert_eq!(kind_of(session.unlink(root, b"free")), Kind::NotFound);
    assert_eq!(kind_of(session.rmdir(root, b"free")), Kind::NotFound);
    let (free, other) = ((root, &b"free"[..]), (root, &b"other"[..]));
    assert_eq!(kind_of(session.rename(free, other, RenameFlags::Replace)), Kind::NotFound);
    assert_eq!(kind_of(session.rmdir(root, b"taken")), Kind::Denied);
}

/// Symptom: the modification time of a directory did not change although files were made in it.
/// Cause: the new time was in the handle, which was dropped with its last user before a sync; and a
/// change of mode put the record's old time into the handle.
/// Fix: the session keeps touched directories until their times are written (`TouchedDirs`).
#[test]
fn times_of_directories_outlive_their_handles() {
    let clock = Arc::new(ManualClock::new(1_000));
    let repository = Repository::with(Arc::new(MemoryStore::new()), 1 << 20, clock.clone());
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    let root = session.root().clone();
    drop(session.mkdir(&root, b"a", 0o755).expect("mkdir"));
    clock.advance(MINUTE);
    let touched_ns = 1_000 + 60_000_000_000;
    session.create(&session.namespace().dir("/a").expect("dir"), b"file", 0o644).expect("create");
    assert_eq!(session.namespace().stat("/a", FollowLinks::No).expect("stat").mtime_ns, touched_ns);
    clock.advance(MINUTE);
    let changes = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
    session.setattr(&root, b"a", &changes).expect("chmod");
    assert_eq!(session.namespace().stat("/a", FollowLinks::No).expect("stat").mtime_ns, touched_ns);
    let set = session.publish("times").expect("publish");
    let published = repository.open(&[set], Identity::root()).expect("open");
    assert_eq!(published.stat("/a", FollowLinks::No).expect("stat").mtime_ns, touched_ns);
}

/// Symptom: a directory whose time had been set to the future kept that time although entries were
/// made in it.
/// Cause: times only grew.
/// Fix: the last change wins, whether a touch or an explicit setting.
#[test]
fn a_directory_set_to_the_future_is_touched_all_the_same() {
    let clock = Arc::new(ManualClock::new(1_000));
    let repository = Repository::with(Arc::new(MemoryStore::new()), 1 << 20, clock.clone());
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    let root = session.root().clone();
    let dir = session.mkdir(&root, b"a", 0o755).expect("mkdir");
    let future = AttributeChanges { mtime_ns: Some(1 << 60), ..AttributeChanges::default() };
    session.setattr(&root, b"a", &future).expect("utimes");
    session.sync().expect("sync");
    assert_eq!(session.namespace().stat("/a", FollowLinks::No).expect("stat").mtime_ns, 1 << 60);
    clock.advance(MINUTE);
    session.create(&dir, b"file", 0o644).expect("create");
    session.sync().expect("sync");
    assert_eq!(
        session.namespace().stat("/a", FollowLinks::No).expect("stat").mtime_ns,
        1_000 + 60_000_000_000
    );
}

/// Symptom: `file/.`, and `link/` where `link` leads to a file, were found, though only directories
/// have such names.
/// Cause: the last `.` was dropped from the path, and the slash after a symbolic link was not
/// applied to its target.
/// Fix: both require a directory (`Namespace::walk`).
#[test]
fn a_file_has_no_names_below_it() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    session.create(session.root(), b"file", 0o644).expect("create");
    session.symlink(session.root(), b"link", b"file").expect("symlink");
    for path in ["/file/.", "/file/", "/link/", "/link/."] {
        let error = session.namespace().stat(path, FollowLinks::Yes).expect_err(path);
        assert_eq!(error.kind(), Kind::NotADirectory, "{path}");
    }
    assert!(session.namespace().stat("/link", FollowLinks::Yes).is_ok());
}

/// Symptom: rewriting a symbolic link replaced its target with the bytes.
/// Cause: only directories were refused.
/// Fix: only regular files have content to rewrite.
#[test]
fn rewriting_is_for_regular_files() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    session.symlink(session.root(), b"link", b"target").expect("symlink");
    let content = Content { bytes: 100, seed: 1 };
    let rewritten = session.rewrite(session.root(), b"link", &mut source(content));
    assert_eq!(rewritten.expect_err("a link").kind(), Kind::Invalid);
    assert_eq!(session.namespace().read_link("/link").expect("a link"), b"target");
}

/// Symptom: a set-user-id program kept its bit when another user wrote to it or it got another
/// owner.
/// Cause: the bit was not dropped, or only from executable files.
/// Fix: as in Linux (`drop_set_id`).
#[test]
fn what_others_wrote_does_not_run_with_the_owners_rights() {
    let session = user_above(|session| {
        session.create(session.root(), b"program", 0o6777).expect("create");
        session.create(session.root(), b"given", 0o4644).expect("create");
        let changes = AttributeChanges { uid: Some(1_001), ..AttributeChanges::default() };
        session.setattr(session.root(), b"given", &changes).expect("chown");
    });
    assert_eq!(session.namespace().stat("/given", FollowLinks::No).expect("stat").mode, 0o644);
    let content = Content { bytes: 10, seed: 1 };
    session.rewrite(session.root(), b"program", &mut source(content)).expect("rewrite");
    assert_eq!(session.namespace().stat("/program", FollowLinks::No).expect("stat").mode, 0o777);
}

/// Symptom: `user.` attributes could be set on symbolic links, and by anybody on a shared directory
/// with the sticky bit.
/// Cause: only write permission was checked.
/// Fix: as in Linux (xattr(7)).
#[test]
fn attributes_for_users_are_for_files_and_own_directories() {
    let session = user_above(|session| {
        session.symlink(session.root(), b"link", b"target").expect("symlink");
        session.mkdir(session.root(), b"shared", 0o1777).expect("mkdir");
        session.create(session.root(), b"file", 0o666).expect("create");
    });
    let set =
        |name: &[u8]| session.set_xattr(session.root(), name, (b"user.a", b"1"), XattrSet::Any);
    assert_eq!(set(b"link").expect_err("a link").kind(), Kind::NotPermitted);
    assert_eq!(set(b"shared").expect_err("not the owner's").kind(), Kind::NotPermitted);
    set(b"file").expect("a file that all may write to");
}

/// Symptom: `lookup` and `setattr` of the empty name in the root found and changed the root itself.
/// Cause: the root stores its inode under that name, and only absent names were checked.
/// Fix: names are checked first where a record is changed, and the empty one is never looked up.
#[test]
fn the_root_is_not_in_itself() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    let changes = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
    session.setattr_root(&changes).expect("chmod");
    let root = session.root();
    assert_eq!(
        session.namespace().lookup(root, b"", true).expect_err("no name").kind(),
        Kind::Invalid
    );
    let changes = AttributeChanges { mode: Some(0), ..AttributeChanges::default() };
    assert_eq!(session.setattr(root, b"", &changes).expect_err("no name").kind(), Kind::Invalid);
    assert_eq!(session.namespace().stat("/", FollowLinks::No).expect("stat").mode, 0o700);
}

/// Symptom: damaged file data was read without an error after a squash.
/// Cause: the rest of a truncated file got a new checksum from the bytes that were found, without
/// checking the old one, which covers everything that was written.
/// Fix: everything that was written is read and verified before the rest is copied
/// (`squash/copy.rs`).
#[test]
fn damage_of_a_shortened_file_does_not_survive_a_squash_unseen() {
    use esker_base::store::SharedStore;
    use esker_fs::maintenance::squash::SquashOptions;

    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(store.clone());
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    let root = session.root().clone();
    let mut rest = &[b'x'; 5_000][..];
    session
        .create_with(&root, b"file", 0o644, &mut |buffer| {
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            Ok(count)
        })
        .expect("write");
    let changes = AttributeChanges { size: Some(3_000), ..AttributeChanges::default() };
    session.setattr(&root, b"file", &changes).expect("shorten");
    let set = session.publish("base").expect("publish");
    let copying = SquashOptions { copy_data: true, ..SquashOptions::default() };
    let squash = || repository.squash(&[set], &copying);
    squash().expect("whole data is squashed");

    let logs = store.list(&format!("set/{set}/data/")).expect("list");
    let log = &logs.first().expect("the file has data").name;
    let mut bytes = store.get(log, u64::MAX).expect("get").to_vec();
    bytes[100] ^= 1;
    store.delete(log).expect("delete");
    store.append_log(log).expect("a new log").append(&bytes).expect("append");
    assert_eq!(squash().map(drop).expect_err("damage").kind(), Kind::Corrupt);
}

/// Symptom: truncating a file of a base succeeded, but the next session saw the old length.
/// Cause: where a collector had deleted a table in use, the store's `NotFound` was mistaken for a
/// file without a name, whose size needs no record.
/// Fix: only a record missing from readable tables means that (`update_inode_if_present`).
#[test]
fn a_change_of_size_fails_if_a_table_is_missing() {
    use esker_base::store::SharedStore;

    let store: SharedStore = Arc::new(MemoryStore::new());
    let clock = || Arc::new(ManualClock::new(1));
    let repository = Repository::with(store.clone(), 0, clock());
    let session = repository.begin(&[], options(Identity::root())).expect("begin");
    let content = Content { bytes: 500, seed: 1 };
    session.create_with(session.root(), b"file", 0o644, &mut source(content)).expect("write");
    let base = session.publish("base").expect("publish");

    let session = repository.begin(&[base], options(Identity::root())).expect("begin");
    let file = session.open_file(session.root(), b"file").expect("open");
    for object in store.list(&format!("set/{base}/")).expect("list") {
        if object.name.contains("/table") {
            store.delete(&object.name).expect("delete");
        }
    }
    let shortened = session.file(&file).truncate(100).and_then(|()| session.file(&file).sync());
    shortened.expect_err("there is no record to change");
}

/// Symptom: a session whose writer had died lost changes that it had synced.
/// Cause: a replay ended at an operation whose segments refer to bytes of another set that cannot
/// be read, and gave up all that follow.
/// Fix: only bytes in the session's own logs say whether an operation survived; readers of the file
/// find out that those of others are gone.
#[test]
fn a_replay_goes_past_bytes_of_other_sets_that_are_gone() {
    use esker_base::store::SharedStore;
    use esker_table::tree::Durability;

    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(store.clone());
    let publish = |name: &str, byte: u8| {
        let session = repository.begin(&[], options(Identity::root())).expect("begin");
        let file = session.create_file(session.root(), b"f", 0o644).expect("create");
        for part in [1, 0] {
            session.file(&file).write(part * 100_000, &[byte; 100_000]).expect("write");
        }
        session.close_file(file).expect("close");
        session.publish(name).expect("publish")
    };
    let upper = publish("upper", 1);
    let lower = publish("lower", 2);
    let mut durable = options(Identity::root());
    durable.tree.durability = Durability::Always;
    let session = repository.begin(&[upper, lower], durable.clone()).expect("begin");
    // The session makes the content of the file, which branches have, its own: by reference.
    let file = session.open_file(session.root(), b"f").expect("open");
    session.file(&file).write(50_000, b"changed").expect("write");
    session.close_file(file).expect("close");
    let root = session.root().clone();
    session.create(&root, b"later", 0o644).expect("create");
    session.sync().expect("sync");
    let set = session.set();
    drop(session);

    for log in store.list(&format!("set/{upper}/data/")).expect("list") {
        store.delete(&log.name).expect("delete");
    }
    let session = repository.resume(set, durable).expect("resume");
    session.namespace().stat("/later", FollowLinks::No).expect("it was synced");
    let inode = session.namespace().stat("/f", FollowLinks::No).expect("stat");
    let read = session.namespace().read_all(&inode, &mut |_| Ok(())).map(drop);
    assert_eq!(read.expect_err("damage").kind(), Kind::NotFound);
}

/// Symptom: a snapshot showed older bytes of a file than the session, although it had been synced.
/// Cause: a write mapped the file's content and then failed. Its segments were visible, but the
/// file was not dirty, so that no record said that it is mapped.
/// Fix: mapping the content marks the file dirty (`map_content`).
#[test]
fn a_snapshot_shows_what_a_failed_write_has_changed() {
    use esker_fs::stack::namespace::FollowLinks;
    use esker_table::tree::{Durability, TreeOptions};

    let hooked = HookedStore::new(Arc::new(MemoryStore::new()));
    let repository = Repository::new(Arc::new(hooked.clone()));
    let tree = TreeOptions { durability: Durability::Always, ..TreeOptions::default() };
    let options = SessionOptions { tree, heartbeat: None, ..options(Identity::root()) };
    let session = repository.begin(&[], options).expect("begin");
    let root = session.root().clone();
    let content = Content { bytes: 20_000, seed: 1 };
    session.create_with(&root, b"file", 0o644, &mut source(content)).expect("write");

    // The first look at manifests is that of mapping, the second that of the write itself.
    let again = hooked.clone();
    hooked.at(When::Before, Request::ListNames, "/manifest/", move || {
        again.at(When::Before, Request::ListNames, "/manifest/", || {
            Err(esker_base::Error::new(Kind::Unavailable, "no answer"))
        });
        Ok(())
    });
    let file = session.open_file(&root, b"file").expect("open");
    session.file(&file).write(5_000, &[7; 10_000]).expect_err("the store does not answer");
    assert!(hooked.has_acted());
    session.sync().expect("sync");
    let shown = session.file(&file).read(0, 20_000).expect("read");
    let set = session.snapshot("snapshot").expect("snapshot");
    let snapshot = repository.open(&[set], Identity::root()).expect("open");
    let inode = snapshot.stat("/file", FollowLinks::No).expect("stat");
    let mut read = Vec::new();
    snapshot
        .read_all(&inode, &mut |bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })
        .expect("read");
    assert!(read == shown, "the snapshot has other bytes");
}

/// Symptom: a list of sessions reported a session that was just beginning as damaged, and failed.
/// Cause: its manifest was missing from the first listing and present in the second, which was to
/// tell damage from a session without a manifest.
/// Fix: a set with manifests is read once more before it counts as damaged.
#[test]
fn a_session_that_begins_during_a_listing_is_not_damaged() {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let hooked = HookedStore::new(memory.clone());
    let repository = Repository::new(Arc::new(hooked.clone()));
    let set = repository.begin(&[], options(user())).expect("begin").set();
    let folder = ObjectFolder::Manifests(set).to_string();
    let names = memory.list_names(&folder).expect("names");
    let manifests: Vec<_> = names
        .iter()
        .map(|name| memory.get(&format!("{folder}{name}"), 1 << 20).expect("one"))
        .collect();
    names.iter().for_each(|name| memory.delete(&format!("{folder}{name}")).expect("delete"));
    assert!(repository.open_sessions().expect("none has begun").is_empty());

    let put = move || {
        let mut each = names.iter().zip(&manifests);
        each.try_for_each(|(name, bytes)| memory.put_if_absent(&format!("{folder}{name}"), bytes))
    };
    hooked.at(When::After, Request::ListNames, "/manifest/", put);
    let sessions = repository.open_sessions().expect("sessions");
    assert!(hooked.has_acted());
    assert_eq!(sessions.iter().map(|session| session.node.set).collect::<Vec<_>>(), [set]);
    assert_eq!(sessions[0].damage(), None);
}

/// Symptom: after the rename of a directory had failed for lack of room, the directory was shown
/// under its new name, and changes in it failed with `NotFound`. One whose removal had failed in
/// the same way took new entries, to which no path led.
/// Cause: a change that cannot be made durable stays in memory, but open directories got it only if
/// it succeeded.
/// Fix: after a failed change they follow the shown state.
#[test]
fn open_directories_follow_failed_changes_that_are_shown() {
    let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::new(faults.clone());
    let tree = TreeOptions { durability: Durability::Always, ..TreeOptions::default() };
    let session =
        repository.begin(&[], SessionOptions { tree, ..options(Identity::root()) }).expect("begin");
    let root = session.root();
    for name in [b"moved", b"first", b"other", b"taken", b"after", b"empty"] {
        session.mkdir(root, name, 0o755).expect("mkdir");
    }
    let open = |name: &str| session.namespace().dir(name).expect("a directory");
    let [moved, first, other, taken, after, empty] =
        ["moved", "first", "other", "taken", "after", "empty"].map(open);
    let without_room = |change: &dyn Fn() -> Result<()>| {
        faults.fail_one_in(1, Kind::NoSpace);
        assert_eq!(change().expect_err("no room").kind(), Kind::NoSpace);
        faults.fail_one_in(0, Kind::NoSpace);
        session.sync().expect("there is room");
    };
    let rename =
        |from: &[u8], to: &[u8], flags| session.rename((root, from), (root, to), flags).map(drop);
    without_room(&|| rename(b"moved", b"here", RenameFlags::Replace));
    without_room(&|| rename(b"first", b"other", RenameFlags::Exchange));
    without_room(&|| rename(b"after", b"taken", RenameFlags::Replace));
    without_room(&|| session.rmdir(root, b"empty").map(drop));
    for (dir, path) in [(&moved, "here"), (&first, "other"), (&other, "first"), (&after, "taken")] {
        session.mkdir(dir, b"below", 0o755).expect("the directory is there");
        session.namespace().dir(format!("{path}/below")).expect("a path leads there");
    }
    for gone in [&taken, &empty] {
        assert_eq!(
            session.mkdir(gone, b"below", 0o755).expect_err("removed").kind(),
            Kind::NotFound
        );
    }
}

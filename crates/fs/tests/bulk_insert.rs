// SPDX-License-Identifier: Apache-2.0
//! Bulk insertion: directories that one session has filled become part of another by reference.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::store::{CountedStore, FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::job::JobId;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::{RenameFlags, XattrSet};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::{Manifest, SetId};

use crate::gc::{eager, later, options, repository, write};
use crate::squash::tree;
use crate::verify::{assert_sound, with};

/// Large enough for a data log of its own.
const LARGE_BYTES: usize = 3 << 20;

fn own_identities() -> SessionOptions {
    SessionOptions { own_identities: true, ..options() }
}

/// A complete set with `/content`: files of all sizes, directories, links, a file that was
/// overwritten in part, and some of it in a second run of tables.
fn filled(repository: &Repository) -> SetId {
    let session = repository.begin(&[], own_identities()).expect("begin");
    let content = session.mkdir(session.root(), b"content", 0o750).expect("mkdir");
    session.mkdir(&content, b"deep", 0o755).expect("mkdir");
    write(&session, "/content/small", b"small").expect("write");
    write(&session, "/content/deep/large", &vec![b'l'; LARGE_BYTES]).expect("write");
    session.flush().expect("flush");
    for number in 0..200 {
        session.create(&content, format!("empty-{number}").as_bytes(), 0o644).expect("create");
    }
    session.symlink(&content, b"symlink", b"deep/large").expect("symlink");
    session.link(&content, b"small", &content, b"linked").expect("link");
    let attribute = (&b"user.kind"[..], &b"test"[..]);
    session.set_xattr(&content, b"small", attribute, XattrSet::Any).expect("set");
    let deep = session.namespace().dir("/content/deep").expect("open");
    let file = session.open_file(&deep, b"large").expect("open");
    session.file(&file).write(1_000, &[b'w'; 700]).expect("write");
    session.close_file(file).expect("close");
    session.complete().expect("complete")
}

fn begin(repository: &Repository) -> Session {
    let session = repository.begin(&[], options()).expect("begin");
    write(&session, "/before", b"here before").expect("write");
    session.mkdir(session.root(), b"content", 0o755).expect("mkdir");
    write(&session, "/content/own", b"of this session").expect("write");
    session
}

fn insert(session: &Session, set: SetId, path: &str) -> Result<()> {
    let adopted = session.adopt_set(set, b"content")?;
    let (dir, name) = path.rsplit_once('/').expect("a path");
    session.insert_adopted(&session.namespace().dir(dir)?, name.as_bytes(), adopted)
}

/// Returns the entries below `prefix`, by their paths there.
fn below(tree: &BTreeMap<Vec<u8>, String>, prefix: &str) -> BTreeMap<Vec<u8>, String> {
    let cut = |(path, line): (&Vec<u8>, &String)| {
        Some((path.strip_prefix(prefix.as_bytes())?.to_vec(), line.clone()))
    };
    let mut found: BTreeMap<Vec<u8>, String> = tree.iter().filter_map(cut).collect();
    // The directory itself gets a new time.
    found.remove(&b""[..]);
    found
}

fn shown(repository: &Repository, set: SetId) -> BTreeMap<Vec<u8>, String> {
    tree(&repository.open(&[set], Identity::root()).expect("open"))
}

#[test]
fn a_directory_is_inserted_whole_and_changes_like_any_other() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let other = filled(&plain);
    let expected = below(&shown(&plain, other), "/content");
    assert_eq!(expected.len(), 205);
    let session = begin(&plain);
    let before = tree(session.namespace());
    let adopted = session.adopt_set(other, b"content")?;
    assert_eq!(tree(session.namespace()), before, "it has no name yet");
    session.insert_adopted(&session.namespace().dir("/content")?, b"inserted", adopted)?;
    assert_eq!(below(&tree(session.namespace()), "/content/inserted"), expected);
    let parent = session.namespace().dir("/content")?;
    assert_eq!(session.namespace().lookup(&parent, b"inserted", false)?.mode, 0o750);

    // The set is needed from now on, whoever gives it up.
    plain.give_up(other, &options())?;
    plain.gc(&eager())?;
    let inserted = session.namespace().dir("/content/inserted")?;
    assert_eq!(session.create(&inserted, b"empty-7", 0o644).unwrap_err().kind(), Kind::Exists);
    assert_eq!(session.mkdir(&inserted, b"deep", 0o755).unwrap_err().kind(), Kind::Exists);
    let removed = session.rmdir(&session.namespace().dir("/content")?, b"inserted").unwrap_err();
    assert_eq!(removed.kind(), Kind::NotEmpty);
    session.unlink(&inserted, b"small")?;
    assert_eq!(session.namespace().lookup(&inserted, b"linked", false)?.nlink, 1);
    session.unlink(&inserted, b"empty-0")?;
    session.create(&inserted, b"empty-0", 0o600)?;
    let file = session.open_file(&session.namespace().dir("/content/inserted/deep")?, b"large")?;
    session.file(&file).write(2_000_000, b"changed")?;
    session.close_file(file)?;
    session.rename((&inserted, b"deep"), (session.root(), b"moved"), RenameFlags::Replace)?;
    let changed = tree(session.namespace());
    let set = session.publish("published")?;
    assert_sound(&plain);
    assert_eq!(shown(&plain, set), changed);
    plain.gc(&eager())?;
    later(&store).gc(&eager())?;
    assert_eq!(shown(&repository(&store), set), changed);
    assert_sound(&plain);

    let (flat, _) = plain.squash(&[set], &Default::default())?;
    plain.publish(flat, "flat")?;
    plain.delete("published")?;
    plain.gc(&eager())?;
    assert_eq!(shown(&repository(&store), flat), changed);
    assert_sound(&plain);
    plain.delete("flat")?;
    plain.gc(&eager())?;
    later(&store).gc(&eager())?;
    assert_eq!(crate::gc::objects(&store), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_compaction_keeps_what_was_inserted() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = begin(&plain);
    for number in 0..3 {
        let other = filled(&plain);
        insert(&session, other, &format!("/inserted-{number}"))?;
        plain.give_up(other, &options())?;
    }
    let before = tree(session.namespace());
    session.compact()?;
    assert_eq!(session.statistics().runs, 1);
    plain.gc(&eager())?;
    assert_eq!(tree(session.namespace()), before);
    assert_sound(&plain);
    let set = session.set();
    drop(session);
    let session = plain.resume(set, options())?;
    assert_eq!(tree(session.namespace()), before);
    session.sync()
}

/// The cost that `adopt_set` and `insert_adopted` state.
/// Symptom: a damaged table of an inserted directory stopped the whole namespace at the first merge
/// that reached it.
/// Cause: a failed merge failed the flush before it, and with that the writer.
/// Fix: such a table stays out of merges. Reads of it, and verification, report the damage.
#[test]
fn damage_of_an_inserted_directory_stops_nothing_else() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let other = filled(&repository(&store));
    let session = begin(&repository(&store));
    insert(&session, other, "/content/inserted")?;
    let set = session.set();
    session.end()?;
    let tables = Manifest::load(&*store, other)?.tables;
    assert!(tables.iter().any(|table| table.schema != tables[0].schema));
    for table in &tables {
        let mut bytes = store.get(&table.name(), u64::MAX)?.to_vec();
        let at = (bytes.len() - usize::try_from(table.tail_bytes).expect("small")) / 2;
        bytes[at] ^= 1;
        let damaged = with(&store, &table.name(), Some(bytes));
        let plain = repository(&damaged);
        let session = plain.resume(set, options())?;
        for round in 0..20 {
            // Records of files, and of parts of files.
            let name = format!("file-{round}");
            session.create(session.root(), name.as_bytes(), 0o644)?;
            let file = session.open_file(session.root(), name.as_bytes())?;
            session.file(&file).write(0, &[b'x'; 100_000])?;
            session.flush()?;
            session.file(&file).write(round * 1_000, &[b'y'; 500])?;
            session.close_file(file)?;
            session.flush()?;
        }
        assert!(session.namespace().stat(b"/content/own", FollowLinks::Yes).is_ok());
        let published = session.publish("published")?;
        let shown = Manifest::load(&*damaged, published)?.tables;
        assert!(shown.iter().any(|shown| shown.name() == table.name()), "it was merged away");
        let report = plain.verify(&VerifyOptions::default())?;
        let is_reported = report.findings.iter().any(|found| found.object == table.name());
        assert!(is_reported, "{:?}", report.findings);
    }
    Ok(())
}

#[test]
fn an_insertion_costs_the_same_for_any_number_of_files() -> Result<()> {
    let cost = |count: usize| -> Result<u64> {
        let store = Arc::new(CountedStore::new(Arc::new(MemoryStore::new())));
        let shared: SharedStore = store.clone();
        let plain = repository(&shared);
        let filling = plain.begin(&[], own_identities())?;
        let content = filling.mkdir(filling.root(), b"content", 0o755)?;
        for number in 0..count {
            filling.create(&content, number.to_string().as_bytes(), 0o644)?;
        }
        let other = filling.complete()?;
        let session = begin(&plain);
        let before = store.counts();
        insert(&session, other, "/inserted")?;
        let spent = store.counts();
        assert!(
            session
                .namespace()
                .find(b"/inserted/0", esker_fs::stack::namespace::FollowLinks::No)
                .is_ok()
        );
        Ok((spent - before).rounds)
    };
    let (few, many) = (cost(10)?, cost(20_000)?);
    assert_eq!(few, many);
    assert!(few <= 14, "{few} requests");
    Ok(())
}

#[test]
fn a_directory_gets_one_name() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let other = filled(&plain);
    let session = begin(&plain);
    let root = session.root().clone();
    let insert = |name: &[u8], adopted| session.insert_adopted(&root, name, adopted);
    assert_eq!(insert(b"new", DirId(7)).unwrap_err().kind(), Kind::NotFound);
    let adopted = session.adopt_set(other, b"content")?;
    assert_eq!(session.adopt_set(other, b"content")?, adopted);
    assert_eq!(insert(b"before", adopted).unwrap_err().kind(), Kind::Exists);
    insert(b"new", adopted)?;
    assert_eq!(insert(b"second", adopted).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(session.adopt_set(other, b"content").unwrap_err().kind(), Kind::Exists);
    let expected = tree(session.namespace());
    let set = session.publish("first")?;
    // Nor in a session on top.
    let above = plain.begin(&[set], options())?;
    assert_eq!(above.adopt_set(other, b"content").unwrap_err().kind(), Kind::Exists);
    assert_eq!(tree(above.namespace()), expected);
    Ok(())
}

/// A snapshot between the two steps has the directory without a name; a session on top may name it.
#[test]
fn a_snapshot_keeps_what_was_adopted() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let other = filled(&plain);
    let expected = below(&shown(&plain, other), "/content");
    let session = begin(&plain);
    let adopted = session.adopt_set(other, b"content")?;
    let snapshot = session.snapshot("between")?;
    session.insert_adopted(session.root(), b"named", adopted)?;
    let named = session.snapshot("named")?;
    plain.give_up(other, &options())?;
    let set = session.set();
    drop(session);
    plain.give_up(set, &options())?;
    plain.gc(&eager())?;
    later(&store).gc(&eager())?;
    assert_sound(&plain);
    assert_eq!(below(&shown(&plain, named), "/named"), expected);
    let above = plain.begin(&[snapshot], options())?;
    assert_eq!(above.adopt_set(other, b"content")?, adopted);
    above.insert_adopted(above.root(), b"later", adopted)?;
    assert_eq!(below(&tree(above.namespace()), "/later"), expected);
    Ok(())
}

#[test]
fn only_sets_that_were_begun_for_it_are_adopted() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = begin(&plain);
    let refused = |set: SetId, name: &[u8]| session.adopt_set(set, name).unwrap_err().kind();

    let ordinary = begin(&plain);
    assert_eq!(refused(ordinary.complete()?, b"content"), Kind::Invalid);
    let open = plain.begin(&[], own_identities())?;
    open.mkdir(open.root(), b"content", 0o755)?;
    write(&open, "/file", b"no directory")?;
    assert_eq!(refused(open.set(), b"content"), Kind::Invalid);
    let complete = open.complete()?;
    assert_eq!(refused(complete, b"missing"), Kind::NotFound);
    assert_eq!(refused(complete, b"file"), Kind::NotADirectory);
    let (squashed, _) = plain.squash(&[filled(&plain)], &Default::default())?;
    assert_eq!(refused(squashed, b"content"), Kind::Invalid);
    assert_eq!(refused(SetId(5), b"content"), Kind::NotFound);

    // Tables that are about to be adopted are never replaced.
    assert_eq!(plain.compact_set(complete, 1).unwrap_err().kind(), Kind::Invalid);

    let on_a_base = plain.begin(&[complete], own_identities());
    assert_eq!(on_a_base.unwrap_err().kind(), Kind::Invalid);
    Ok(())
}

fn markers_of(store: &SharedStore, set: SetId) -> Vec<String> {
    let objects = store.list("ref/").expect("list");
    let suffix = format!("set-{set}");
    objects.into_iter().map(|object| object.name).filter(|name| name.ends_with(&suffix)).collect()
}

/// Symptom: a set that was refused was held for as long as the session lived; one that adopted
/// itself, for good.
/// Cause: markers were put before anything was checked, and stayed.
#[test]
fn a_refused_set_is_not_held() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let session = plain.begin(&[], own_identities())?;
    let other = filled(&plain);
    let open = plain.begin(&[], own_identities())?;
    for (set, name) in [
        (session.set(), &b"content"[..]),
        (open.set(), b"content"),
        (SetId(5), b"content"),
        (other, b"missing"),
        (other, b""),
        (other, b"a/b"),
    ] {
        assert!(session.adopt_set(set, name).is_err());
        assert_eq!(markers_of(&store, session.set()), Vec::<String>::new(), "{name:?}");
    }
    // A set that is needed already stays held.
    session.adopt_set(other, b"content")?;
    let held = markers_of(&store, session.set());
    assert_eq!(held.len(), 1);
    assert!(session.adopt_set(other, b"missing").is_err());
    assert_eq!(markers_of(&store, session.set()), held);
    Ok(())
}

/// Symptom: adopting a set that a base had changed reverted the changes, or showed a directory at
/// two names.
/// Cause: adopted tables are in the session's own layer, above its bases; only the set itself was
/// looked for.
#[test]
fn sets_that_are_known_already_are_not_adopted_again() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let conflict = |session: &Session, set: SetId| {
        let before = tree(session.namespace());
        let kind = session.adopt_set(set, b"content").unwrap_err().kind();
        assert_eq!(tree(session.namespace()), before);
        kind
    };
    // A base, and a set on top that changed it.
    let other = filled(&plain);
    plain.publish(other, "other")?;
    let changed = plain.begin(&[other], options())?;
    changed.unlink(&changed.namespace().dir("/content")?, b"small")?;
    let changed = changed.publish("changed")?;
    for base in [other, changed] {
        assert_eq!(conflict(&plain.begin(&[base], options())?, other), Kind::Conflict);
    }
    // A set that has adopted it.
    let nested = plain.begin(&[], own_identities())?;
    nested.mkdir(nested.root(), b"content", 0o755)?;
    insert(&nested, other, "/content/sub")?;
    let nested = nested.complete()?;
    let session = begin(&plain);
    insert(&session, other, "/first")?;
    assert_eq!(conflict(&session, nested), Kind::Conflict);
    let session = begin(&plain);
    insert(&session, nested, "/first")?;
    assert_eq!(conflict(&session, other), Kind::Exists);
    // Also after a squash, without data logs that would tell.
    let empty = plain.begin(&[], own_identities())?;
    empty.create(&empty.mkdir(empty.root(), b"content", 0o755)?, b"file", 0o644)?;
    let empty = empty.complete()?;
    let session = begin(&plain);
    insert(&session, empty, "/inserted")?;
    session.unlink(&session.namespace().dir("/inserted")?, b"file")?;
    let published = session.publish("published")?;
    let (flat, _) = plain.squash(&[published], &Default::default())?;
    assert_eq!(conflict(&plain.begin(&[flat], options())?, empty), Kind::Exists);
    assert_sound(&plain);
    Ok(())
}

/// A squash keeps a directory that was adopted and has no name yet.
#[test]
fn a_squash_keeps_what_was_adopted() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let other = filled(&plain);
    let expected = below(&shown(&plain, other), "/content");
    let session = begin(&plain);
    let adopted = session.adopt_set(other, b"content")?;
    let snapshot = session.publish("snapshot")?;
    let (flat, _) = plain.squash(&[snapshot], &Default::default())?;
    plain.publish(flat, "flat")?;
    plain.delete("snapshot")?;
    plain.give_up(other, &options())?;
    plain.gc(&eager())?;
    assert_sound(&plain);
    let above = plain.begin(&[flat], options())?;
    above.insert_adopted(above.root(), b"named", adopted)?;
    assert_eq!(below(&tree(above.namespace()), "/named"), expected);
    Ok(())
}

#[test]
fn only_one_directory_of_a_set_is_adopted() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let two = plain.begin(&[], own_identities())?;
    two.mkdir(two.root(), b"one", 0o755)?;
    two.mkdir(two.root(), b"two", 0o755)?;
    let two = two.complete()?;
    let session = begin(&plain);
    session.adopt_set(two, b"one")?;
    assert_eq!(session.adopt_set(two, b"two").unwrap_err().kind(), Kind::Conflict);
    Ok(())
}

/// Two sets may have a directory at the same path; those with their own identities never share one.
#[test]
fn own_identities_differ_from_all_others_and_outlast_a_resume() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let made = |session: &Session, name: &[u8]| -> Result<DirId> {
        session.mkdir(session.root(), name, 0o755).map(|dir| dir.id())
    };
    let derived = |name: &[u8]| DirId::child(DirId::ROOT, 0, name);
    let session = plain.begin(&[], own_identities())?;
    let set = session.set();
    let one = made(&session, b"one")?;
    session.sync()?;
    drop(session);
    let session = plain.resume(set, options())?;
    let two = made(&session, b"two")?;
    assert_ne!(one, derived(b"one"));
    assert_ne!(two, derived(b"two"));
    session.rmdir(session.root(), b"one")?;
    let again = made(&session, b"one")?;
    assert!(again != one && again != derived(b"one"));
    let other = plain.begin(&[], own_identities())?;
    assert_ne!(made(&other, b"one")?, one);
    Ok(())
}

/// Parts of a job share their identities, so what they write into one directory is joined, and
/// inserted as one. Another set of the same job has the same identities, and is refused.
#[test]
fn the_parts_of_a_job_are_inserted_together() -> Result<()> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let plain = repository(&store);
    let job = JobId(77);
    let part = |rank: u32| -> Result<SetId> {
        let part = plain.begin_part(job, rank, &[], own_identities())?;
        part.mkdir(part.root(), b"content", 0o755)?;
        part.mkdir(&part.namespace().dir("/content")?, b"all", 0o755)?;
        write(&part, &format!("/content/all/rank-{rank}"), &vec![b'r'; LARGE_BYTES])?;
        write(&part, "/content/same", format!("of rank {rank}").as_bytes())?;
        part.complete()
    };
    let parts = [part(0)?, part(1)?, part(2)?];
    let report = plain.publish_job(&parts, "joined")?;
    assert_eq!(report.conflicts.len(), 1, "{:?}", report.conflicts);
    let expected = below(&shown(&plain, report.set), "/content");
    assert_eq!(expected.len(), 1 + 3 + 1);
    let session = begin(&plain);
    insert(&session, report.set, "/inserted")?;
    assert_eq!(below(&tree(session.namespace()), "/inserted"), expected);
    plain.delete("joined")?;
    plain.gc(&eager())?;
    session.compact()?;
    assert_eq!(below(&tree(session.namespace()), "/inserted"), expected);
    let set = session.publish("with")?;
    plain.gc(&eager())?;
    later(&store).gc(&eager())?;
    assert_eq!(below(&shown(&repository(&store), set), "/inserted"), expected);
    assert_sound(&plain);

    let above = plain.begin(&[set], options())?;
    let again = plain.begin_part(job, 9, &[], own_identities())?;
    again.mkdir(again.root(), b"content", 0o755)?;
    assert_eq!(above.adopt_set(again.complete()?, b"content").unwrap_err().kind(), Kind::Exists);
    let ordinary = plain.begin_part(JobId(78), 0, &[], options())?.complete()?;
    let insertable = plain.begin_part(JobId(78), 1, &[], own_identities())?.complete()?;
    let mixed = plain.publish_job(&[ordinary, insertable], "mixed");
    assert_eq!(mixed.unwrap_err().kind(), Kind::Invalid);
    Ok(())
}

/// The world stops at every store operation of an insertion: afterwards the directory is there with
/// everything in it, or it is not there and can be inserted; no crash loses what was there before.
#[test]
fn a_crash_at_any_request_leaves_all_of_a_directory_or_none() -> Result<()> {
    for power_loss in [false, true] {
        for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
            for stop in 1.. {
                if !stopped_insertion(stop, effect, power_loss)? {
                    assert!(stop > 8, "{stop} requests");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Any request of an insertion fails, with its effect or without: what the session's newest
/// manifest lists is held, and a retry succeeds, in the session or in one that resumes it.
#[test]
fn a_failed_request_leaves_nothing_that_is_listed_unheld() -> Result<()> {
    for effect in [FaultEffect::None, FaultEffect::Full] {
        for at in 1.. {
            let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), at));
            let store: SharedStore = faulty.clone();
            let plain = repository(&store);
            let other = filled(&plain);
            let expected = below(&shown(&plain, other), "/content");
            let session = begin(&plain);
            session.sync()?;
            let (set, first) = (session.set(), faulty.operations());
            faulty.fail_at_with(first + at, Kind::Unavailable, effect);
            let inserted = insert(&session, other, "/inserted");
            if faulty.operations() < first + at {
                assert!(at > 6, "{at} requests");
                break;
            }
            let listed = Manifest::load(&*store, set)?.data_sets.contains(&other);
            assert!(!listed || !markers_of(&store, set).is_empty(), "{effect:?} at {at}");
            plain.give_up(other, &options())?;
            plain.gc(&eager())?;
            drop(session);
            let session = plain.resume(set, options())?;
            if listed {
                // Without a sync, the name may be lost.
                if !tree(session.namespace()).contains_key(&b"/inserted"[..]) {
                    insert(&session, other, "/inserted")?;
                }
                assert!(
                    below(&tree(session.namespace()), "/inserted") == expected,
                    "{effect:?} at {at}"
                );
                session.compact()?;
            }
            assert!(listed || inserted.is_err(), "{effect:?} at {at}");
            assert_sound(&plain);
        }
    }
    Ok(())
}

/// Stops an insertion at its request `stop`; false if it has fewer.
fn stopped_insertion(stop: u64, effect: FaultEffect, power_loss: bool) -> Result<bool> {
    let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), stop));
    let store: SharedStore = faulty.clone();
    let plain = repository(&store);
    let other = filled(&plain);
    let expected = below(&shown(&plain, other), "/content");
    let session = begin(&plain);
    session.sync()?;
    let before = tree(session.namespace());
    let set = session.set();
    faulty.stop_at(faulty.operations() + stop, effect);
    let inserted = insert(&session, other, "/inserted").and_then(|()| session.sync());
    if !faulty.is_stopped() {
        return Ok(false);
    }
    drop((session, plain));
    let store = match power_loss {
        true => faulty.after_power_loss()?,
        false => faulty.after_process_death()?,
    };
    let plain = repository(&store);
    let session = plain.resume(set, options())?;
    let found = tree(session.namespace());
    let is_there = found.contains_key(&b"/inserted"[..]);
    assert!(is_there || inserted.is_err(), "an insertion that was synced is lost");
    if !is_there {
        assert_eq!(found, before);
        // The set may have been adopted.
        insert(&session, other, "/inserted")?;
    }
    assert_eq!(below(&tree(session.namespace()), "/inserted"), expected);
    let all = tree(session.namespace());
    plain.give_up(other, &options())?;
    plain.gc(&eager())?;
    assert_eq!(tree(session.namespace()), all);
    let published = session.publish("published")?;
    plain.gc(&eager())?;
    let view: Namespace = repository(&store).open(&[published], Identity::root())?;
    assert_eq!(tree(&view), all);
    assert_sound(&plain);
    Ok(true)
}

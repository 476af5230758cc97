// SPDX-License-Identifier: Apache-2.0
//! Garbage of a live session: overwritten data is reclaimed during writes, concurrently with
//! readers, writers, snapshots, crashes and takeovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use esker_base::random::Random;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::SetId;

use crate::gc::{options, write};
use crate::interrupted_store::Interrupted;
use crate::model::check_sound;
use crate::verify::assert_sound;

const PIECE_BYTES: usize = 32 << 10;
const PIECES: usize = 8;
/// Data logs take at most this much more than twice the shown bytes.
const STORE_BYTES_OVER: u64 = 256 << 20;

fn begin(store: &SharedStore) -> (Repository, Session) {
    let repository = Repository::new(store.clone());
    let session = repository.begin(&[], options()).expect("begin");
    (repository, session)
}

fn data_bytes(store: &SharedStore, set: SetId) -> u64 {
    let logs = store.list(&format!("set/{set}/data/")).expect("list");
    logs.iter().map(|log| log.bytes).sum()
}

/// Writes all pieces of `file`, each filled with `round`.
fn write_round(session: &Session, file: &Arc<OpenFile>, round: u8) -> Result<()> {
    (0..PIECES).try_for_each(|piece| {
        session.file(file).write((piece * PIECE_BYTES) as u64, &[round; PIECE_BYTES])
    })
}

/// Returns the round of each piece of `/file`.
fn rounds(namespace: &Namespace) -> Result<Vec<u8>> {
    let inode = namespace.find("/file", FollowLinks::No)?.inode;
    let mut bytes = Vec::new();
    namespace.read_all(&inode, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    let pieces = bytes.chunks(PIECE_BYTES);
    Ok(pieces
        .map(|piece| {
            assert!(piece.iter().all(|byte| *byte == piece[0]), "a piece of two rounds");
            piece[0]
        })
        .collect())
}

/// Symptom: a file of 16 MiB that was overwritten 100 times took 1.6 GiB of the store for the
/// lifetime of its session.
/// Cause: overwritten bytes were reclaimed only by a compaction, and never from a log whose file
/// was open.
/// Fix: writers estimate their garbage, and reclaim it before it exceeds a bound
/// (`Session::bound_garbage`); an open log is ended, and its file continues in another.
#[test]
fn overwriting_keeps_the_store_bounded() {
    const FILE_BYTES: usize = 16 << 20;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (_, session) = begin(&store);
    let file = session.create_file(session.root(), b"file", 0o600).expect("create");
    for round in 0..28 {
        for offset in (0..FILE_BYTES).step_by(1 << 20) {
            session.file(&file).write(offset as u64, &[round; 1 << 20]).expect("write");
        }
        let stored = data_bytes(&store, session.set());
        assert!(stored <= 2 * FILE_BYTES as u64 + STORE_BYTES_OVER, "{round}: {stored}");
    }
    session.file(&file).sync().expect("sync");
    session.give_up_garbage().expect("give up");
    let stored = data_bytes(&store, session.set());
    assert!(stored <= 2 * FILE_BYTES as u64 + (65 << 20), "{stored}");
    let read = session.file(&file).read(0, FILE_BYTES).expect("read");
    assert!(read.iter().all(|byte| *byte == 27));
}

/// Symptom: a large file overwritten at random places temporarily took three times its size: 3.3
/// GiB for 1 GiB.
/// Cause: all of it was in one log, whose shown bytes all move before it is deleted.
/// Fix: a log to which bytes are appended ends at `LOG_BYTES`.
#[test]
fn overwriting_a_large_file_at_random_keeps_the_store_bounded() {
    const FILE_BYTES: u64 = 176 << 20;
    const BLOCK_BYTES: usize = 256 << 10;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (_, session) = begin(&store);
    let file = session.create_file(session.root(), b"file", 0o600).expect("create");
    let block = vec![7; BLOCK_BYTES];
    for offset in (0..FILE_BYTES).step_by(BLOCK_BYTES) {
        session.file(&file).write(offset, &block).expect("write");
    }
    // The peak during a pass is reached just before anything is deleted.
    let most = std::sync::atomic::AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                most.fetch_max(data_bytes(&store, session.set()), Ordering::Relaxed);
                thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let mut random = Random::from_seed(3);
        for _ in 0..3_000 {
            let number = random.below(FILE_BYTES / BLOCK_BYTES as u64);
            session.file(&file).write(number * BLOCK_BYTES as u64, &block).expect("write");
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let most = most.into_inner();
    assert!(most <= 2 * FILE_BYTES + STORE_BYTES_OVER, "{most}");
}

/// As above, for files that are replaced as a whole or removed: then records, not segments,
/// determine what is garbage.
#[test]
fn replacing_and_removing_keep_the_store_bounded() {
    const FILE_BYTES: usize = 16 << 20;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (_, session) = begin(&store);
    for round in 0..28u8 {
        write(&session, "/file", &vec![round; FILE_BYTES]).expect("write");
        let stored = data_bytes(&store, session.set());
        assert!(stored <= 2 * FILE_BYTES as u64 + STORE_BYTES_OVER, "{round}: {stored}");
        session.unlink(session.root(), b"file").expect("unlink");
    }
    session.give_up_garbage().expect("give up");
    let stored = data_bytes(&store, session.set());
    assert!(stored <= 65 << 20, "{stored}");
}

/// A snapshot keeps what it shows, and garbage written after it is bounded nevertheless.
#[test]
fn overwriting_beside_a_snapshot_keeps_the_store_bounded() {
    const FILE_BYTES: usize = 16 << 20;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (repository, session) = begin(&store);
    let file = session.create_file(session.root(), b"file", 0o600).expect("create");
    let round = |round: u8| {
        for offset in (0..FILE_BYTES).step_by(1 << 20) {
            session.file(&file).write(offset as u64, &[round; 1 << 20]).expect("write");
        }
    };
    round(1);
    let snapshot = session.snapshot("snapshot").expect("snapshot");
    let shown = 2 * FILE_BYTES as u64;
    for number in 2..30 {
        round(number);
        let stored = data_bytes(&store, session.set());
        assert!(stored <= 2 * shown + STORE_BYTES_OVER, "{number}: {stored}");
    }
    let shown =
        repository.open(&[snapshot], esker_fs::stack::identity::Identity::root()).expect("open");
    assert!(rounds(&shown).expect("read").iter().all(|round| *round == 1));
    assert_sound(&repository);
}

/// Other threads write, copy and read ranges of a file while its logs are continually reclaimed.
#[test]
fn what_is_written_meanwhile_is_kept() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let (repository, session) = begin(&store);
    let file = session.create_file(session.root(), b"file", 0o600).expect("create");
    session.file(&file).write(0, &vec![0; 2 << 20]).expect("write");
    let is_done = AtomicBool::new(false);
    let mut expected = vec![0; 2 << 20];
    let reclaimed = thread::scope(|scope| {
        let reclaimer = scope.spawn(|| {
            let mut bytes = 0;
            while !is_done.load(Ordering::Relaxed) {
                bytes += session.reclaim_data().expect("reclaim");
            }
            bytes
        });
        let mut random = Random::from_seed(14);
        for step in 0..1_500u32 {
            let length = 1 + random.below(60_000) as usize;
            let offset = random.below((expected.len() - length) as u64) as usize;
            if step % 3 == 0 {
                let from = random.below((expected.len() - length) as u64) as usize;
                let is_apart = from + length <= offset || offset + length <= from;
                if is_apart {
                    let range = from as u64..(from + length) as u64;
                    session.file(&file).copy_range(range, &file, offset as u64).expect("copy");
                    expected.copy_within(from..from + length, offset);
                }
                continue;
            }
            let bytes: Vec<u8> = step.to_le_bytes().into_iter().cycle().take(length).collect();
            session.file(&file).write(offset as u64, &bytes).expect("write");
            expected[offset..offset + length].copy_from_slice(&bytes);
            let read = session.file(&file).read(offset as u64, length).expect("read");
            assert!(read == bytes, "step {step}");
        }
        is_done.store(true, Ordering::Relaxed);
        reclaimer.join().expect("no panic")
    });
    assert!(session.file(&file).read(0, expected.len()).expect("read") == expected);
    session.close_file(file).expect("close");
    session.flush().expect("flush");
    let reclaimed = reclaimed + session.reclaim_data().expect("reclaim");
    assert!(reclaimed > 2 << 20, "{reclaimed}");
    assert_sound(&repository);
    let session = repository.resume(session.set(), options()).expect("resume");
    let file = session.open_file(session.root(), b"file").expect("open");
    assert!(session.file(&file).read(0, expected.len()).expect("read") == expected);
}

/// Progress of [`overwrite_and_reclaim`]: rounds begun, and rounds that survive power loss.
#[derive(Default)]
struct Progress {
    set: Option<SetId>,
    begun: u8,
    durable: u8,
}

/// Overwrites a file, first while it is small and as a whole, then in pieces, and reclaims its logs
/// in between.
fn overwrite_and_reclaim(store: SharedStore, progress: &mut Progress) -> Result<()> {
    let session = Repository::new(store).begin(&[], options())?;
    progress.set = Some(session.set());
    for round in 1..=6 {
        let file = match round {
            1 => session.create_file(session.root(), b"file", 0o600)?,
            _ => session.open_file(session.root(), b"file")?,
        };
        progress.begun = round;
        write_round(&session, &file, round)?;
        session.close_file(file)?;
        if round % 2 == 0 {
            session.sync()?;
            progress.durable = round;
            session.reclaim_data()?;
            assert!(rounds(session.namespace())?.iter().all(|found| *found == round));
        }
    }
    Ok(())
}

/// The world stops at every request of a reclaim: synced data is there.
#[test]
fn a_crash_at_every_request_loses_nothing() {
    let total = {
        let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        overwrite_and_reclaim(fault.clone(), &mut Progress::default()).expect("nothing fails");
        fault.operations()
    };
    for stop in 1..=total {
        for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
            let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), stop));
            fault.stop_at(stop, effect);
            let mut progress = Progress::default();
            let _ = overwrite_and_reclaim(fault.clone(), &mut progress);
            for image in [fault.after_power_loss(), fault.after_process_death()] {
                let store = image.expect("an image");
                check_crashed(&store, &progress);
            }
        }
    }
}

fn check_crashed(store: &SharedStore, progress: &Progress) {
    let repository = Repository::new(store.clone());
    let Some(set) = progress.set else { return };
    check_sound(&repository);
    let session = repository.resume(set, options()).expect("resume");
    let check = |session: &Session| match rounds(session.namespace()) {
        Ok(found) => {
            let lawful = progress.durable..=progress.begun;
            assert!(found.iter().all(|round| lawful.contains(round)), "{found:?} of {lawful:?}");
            assert!(progress.durable == 0 || found.len() == PIECES);
        }
        Err(error) => assert!(
            progress.durable == 0 && error.kind() == Kind::NotFound,
            "after round {}: {error}",
            progress.durable
        ),
    };
    check(&session);
    session.reclaim_data().expect("what a crash left is reclaimed");
    check(&session);
    check_sound(&repository);
}

/// Another writer takes the session over at every request of a reclaim, and finds synced data; its
/// own writes are not deleted.
#[test]
fn a_takeover_at_every_request_loses_nothing() {
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = Repository::new(store.clone());
        let interrupted = Interrupted::idle(store.clone(), at);
        let repository = Repository::new(interrupted.clone() as SharedStore);
        let former = repository.begin(&[], options()).expect("begin");
        for round in 1..=3 {
            let file = match round {
                1 => former.create_file(former.root(), b"file", 0o600),
                _ => former.open_file(former.root(), b"file"),
            };
            let file = file.expect("open");
            write_round(&former, &file, round).expect("write");
            former.close_file(file).expect("close");
        }
        former.sync().expect("sync");
        let set = former.set();
        let in_action = plain.clone();
        let take_over = Box::new(move || {
            let session = in_action.resume(set, options()).expect("resume");
            assert!(rounds(session.namespace()).expect("read").iter().all(|round| *round == 3));
            write(&session, "/new", &[b'n'; 300_000]).expect("write");
            let file = session.open_file(session.root(), b"file").expect("open");
            session.file(&file).write(0, &[4; PIECE_BYTES]).expect("write");
            session.close_file(file).expect("close");
            session.flush().expect("flush");
        });
        interrupted.begin(Box::new(|_| true), take_over);
        let reclaimed = former.reclaim_data();
        if !interrupted.has_happened() {
            assert!(reclaimed.expect("reclaim") > 0);
            break;
        }
        drop(former);
        let session = plain.resume(set, options()).expect("resume");
        let found = rounds(session.namespace()).expect("read");
        assert_eq!((found[0], &found[1..]), (4, &[3; PIECES - 1][..]), "at {at}");
        check_sound(&plain);
    }
}

/// A reader that runs at every request of a reclaim finds the whole file.
#[test]
fn a_reader_at_every_request_finds_all_bytes() {
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let interrupted = Interrupted::idle(store.clone(), at);
        let repository = Repository::new(interrupted.clone() as SharedStore);
        let session = Arc::new(repository.begin(&[], options()).expect("begin"));
        let file = session.create_file(session.root(), b"file", 0o600).expect("create");
        write_round(&session, &file, 1).expect("write");
        session.close_file(file).expect("close");
        let file = session.open_file(session.root(), b"file").expect("open");
        (2..=4).for_each(|round| write_round(&session, &file, round).expect("write"));
        session.flush().expect("flush");
        let (reading, read_file) = (session.clone(), file.clone());
        let read = Box::new(move || {
            let bytes = reading.file(&read_file).read(0, PIECES * PIECE_BYTES).expect("read");
            assert!(bytes.len() == PIECES * PIECE_BYTES && bytes.iter().all(|byte| *byte == 4));
        });
        interrupted.begin(Box::new(|_| true), read);
        assert!(session.reclaim_data().expect("reclaim") > 0);
        if !interrupted.has_happened() {
            break;
        }
    }
}

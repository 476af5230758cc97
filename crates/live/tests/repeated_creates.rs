// SPDX-License-Identifier: Apache-2.0
//! Creates that survived a crash without an answer, and are repeated after others have used the files.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::wire::{WireInput, put_bytes, put_varint};
use esker_fs::inode::DirId;
use esker_fs::repository::Repository;
use esker_live::LiveServer;
use esker_live::client::{LiveDir, Request};
use esker_live::wire::{FrameHeader, Verb, take_status};

use crate::raw_client::{frame, greeted, receive};
use crate::served::{LiveStore, NAME, server_options};

const CLIENT: u64 = 99;
const FRAMES: u64 = 200;
const ITEMS: u16 = 100;
/// Looks whether the store has stopped, some milliseconds apart.
const ATTEMPTS: usize = 4_000;

fn name(number: u64, item: u16) -> Vec<u8> {
    format!("{number}.{item}.{}", "x".repeat(180)).into_bytes()
}

/// Request `number`, which has no answer yet, like all before it.
fn create(number: u64, is_repeated: bool) -> Vec<u8> {
    let mut payload = DirId::ROOT.0.to_le_bytes().to_vec();
    for item in 0..ITEMS {
        put_varint(&mut payload, 0o644);
        put_bytes(&mut payload, &name(number, item));
    }
    let window = u32::try_from(number).expect("few");
    let mut header = FrameHeader { window, items: ITEMS, ..FrameHeader::new(Verb::Create, number) };
    header.flags.is_repeated = is_repeated;
    frame(&header, &payload)
}

/// Sends frames to a server whose store stops at its `stop`-th request.
fn crash(stop: u64, frames: impl Iterator<Item = Vec<u8>>) -> LiveStore {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let live = LiveStore::in_store(memory.clone());
    let faults = Arc::new(FaultStore::new(memory, stop));
    let store: SharedStore = faults.clone();
    let server = LiveServer::start(&Repository::new(store), (NAME, 0), server_options());
    let server = server.expect("a server");
    let mut client = greeted(&live, &server, CLIENT);
    faults.stop_at(faults.operations() + stop, FaultEffect::Full);
    for frame in frames {
        // Fails once the server has gone.
        let _ = client.write_all(&frame);
    }
    for _ in 0..ATTEMPTS {
        if faults.is_stopped() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    live
}

/// Symptom: files that other clients had removed were there again, empty, and those that they had moved
/// appeared once more under their old names, as the same files: writing to one changed the other.
/// Cause: the record of a client's creates followed them at the end of a batch; a crash after the log
/// was written in the middle of the batch kept the creates alone, and they were carried out again.
/// Fix: the log carries the record as of the last create whenever it is written.
#[test]
fn creates_that_survive_a_crash_are_not_carried_out_again() {
    let mut partial = 0;
    for stop in 1..=8 {
        let live = crash(stop, (1..=FRAMES).map(|number| create(number, false)));
        let next = live.serve();
        let mut others = live.connect();
        let root = LiveDir::root();
        let list = |tree: &mut esker_live::LiveTree| -> BTreeSet<Vec<u8>> {
            tree.list(&root).expect("list").into_iter().map(|entry| entry.name).collect()
        };
        let survived: Vec<Vec<u8>> = list(&mut others).into_iter().collect();
        partial += usize::from(!survived.len().is_multiple_of(usize::from(ITEMS)));
        // The last ones too: they are those that a record may miss.
        let last = (1..=FRAMES).flat_map(|number| (0..ITEMS).map(move |item| name(number, item)));
        let last = last.rev().find(|name| survived.binary_search(name).is_ok());
        let used: BTreeSet<&Vec<u8>> = survived.iter().step_by(97).chain(&last).collect();
        for (index, old) in used.iter().enumerate() {
            if index % 3 == 0 {
                let removal = Request::unlink(&root, &[old]).durable();
                others.change(removal).expect("unlink");
                continue;
            }
            let new = format!("moved-{index}").into_bytes();
            others.rename((&root, old), (&root, &new)).expect("rename");
            others.write(&root, &new, 0, b"what others wrote").expect("write");
        }
        others.sync().expect("sync");
        let mut expected = list(&mut others);

        let mut again = greeted(&live, &next, CLIENT);
        for number in 1..=FRAMES {
            again.write_all(&create(number, true)).expect("sent");
            let (answer, payload) = receive(&mut again).expect("an answer");
            assert_eq!((answer.number, answer.items), (number, ITEMS));
            let mut input = WireInput::new(&payload);
            for item in 0..ITEMS {
                let outcome = take_status(&mut input).expect("a status");
                outcome.unwrap_or_else(|error| panic!("{number}.{item}: {error}"));
            }
        }
        let all = (1..=FRAMES).flat_map(|number| (0..ITEMS).map(move |item| name(number, item)));
        expected.extend(all.filter(|name| survived.binary_search(name).is_err()));
        let found = list(&mut others);
        let again: Vec<_> = found.difference(&expected).collect();
        assert!(again.is_empty(), "stopped at {stop}: {} are there again", again.len());
        assert_eq!(found.len(), expected.len());
        for index in (0..used.len()).filter(|index| index % 3 != 0) {
            let moved = format!("moved-{index}").into_bytes();
            assert_eq!(others.read(&root, &moved).expect("read"), b"what others wrote");
        }
        others.close().expect("close");
        next.end().expect("end");
    }
    assert!(partial > 0, "no crash was in the middle of a request");
}

/// Symptom: a removal that survived a crash was carried out again, after creates in the same batch.
/// Cause: the log went on carrying the record as of the creates, behind the newer one of the removal.
/// Fix: the record is put by itself before a change that carries one, and the log carries none then.
#[test]
fn changes_after_creates_are_not_carried_out_again() {
    let unlink = |number: u64, is_repeated: bool| {
        let mut payload = DirId::ROOT.0.to_le_bytes().to_vec();
        put_bytes(&mut payload, &name(number - 1, 0));
        let window = u32::try_from(number).expect("few");
        let mut header = FrameHeader { window, items: 1, ..FrameHeader::new(Verb::Unlink, number) };
        header.flags.is_repeated = is_repeated;
        frame(&header, &payload)
    };
    for stop in 1..=6 {
        let numbers = (1..=FRAMES).step_by(2);
        let pairs =
            numbers.map(|number| [create(number, false), unlink(number + 1, false)].concat());
        let live = crash(stop, pairs);
        let next = live.serve();
        let mut again = greeted(&live, &next, CLIENT);
        for number in (1..=FRAMES).step_by(2) {
            for bytes in [create(number, true), unlink(number + 1, true)] {
                again.write_all(&bytes).expect("sent");
                let (answer, payload) = receive(&mut again).expect("an answer");
                let mut input = WireInput::new(&payload);
                for item in 0..answer.items {
                    let outcome = take_status(&mut input).expect("a status");
                    outcome.unwrap_or_else(|error| {
                        panic!("stop {stop}: {}.{item}: {error}", answer.number)
                    });
                }
            }
        }
        let mut others = live.connect();
        let names = others.list(&LiveDir::root()).expect("list");
        assert_eq!(names.len() as u64, FRAMES / 2 * u64::from(ITEMS - 1), "stopped at {stop}");
        others.close().expect("close");
        next.end().expect("end");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Whole stores made by a hostile writer: every object is well formed and has valid checksums, but
//! records, manifests and names are arbitrary.
//!
//! A store is listed, read, exported, verified, changed, squashed and collected. Whatever the
//! results, these operations end, allocate within bounds, do not panic, and write nothing outside
//! the directory of the export.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::ManualClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Error, Kind, Result};
use esker_extent::SEGMENT;
use esker_fs::inode::{INODE, Inode, name_hash};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::conflicts::ComposedBases;
use esker_fs::traversal::diff::diff;
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::tally::TransferTally;
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep};
use esker_table::internals::TableWriter;
use esker_table::manifest::{Manifest, SetId, SetState, TableRef};
use esker_table::schema::{KeyBuffer, RowBuffer, Schema};
use esker_table::tree::{Durability, TreeOptions};

use crate::choices::Choices;

const SETS: u128 = 3;
/// Identities of directories; names in one lead only to later ones, so that trees end.
const DIRECTORIES: u64 = 5;
const RECORDS_MAX: usize = 24;
const LOG_BYTES: usize = 8 << 10;
/// Most entries that a walk visits.
const VISITS_MAX: usize = 3_000;
/// Times at which the stores are created and collected.
const MADE_NS: u64 = 1_000_000_000_000_000_000;
const DAY_NS: u64 = 86_400_000_000_000;

/// Names mixed with plain ones.
const NAMES: [&[u8]; 12] = [
    b"../escaped",
    b"..",
    b".",
    b"/absolute",
    b"sub/through",
    b"link/through",
    b"zero\0byte",
    b"",
    b"link",
    b"directory",
    b"\xff\xfe",
    &[b'n'; 255],
];

/// What a forged store has of things that no session writes.
#[derive(Clone, Copy)]
struct Hostility {
    /// The more, the more often.
    level: u8,
    /// Directories lead anywhere, also back to where they came from.
    has_loops: bool,
}

/// Returns the repository of a store that `choices` make.
pub fn forge(choices: &mut Choices) -> Repository {
    let store: SharedStore = Arc::new(MemoryStore::new());
    // A listing ends at the first refused record, so some stores have few of them.
    let level = [1, 4, 16, 64][usize::from(choices.u8() % 4)];
    let hostility = Hostility { level, has_loops: choices.u8() < 0x40 };
    for number in 0..1 + choices.below(SETS as usize) {
        forge_set(&store, SetId(1 + number as u128), hostility, choices);
    }
    let clock = Arc::new(ManualClock::new(MADE_NS + 365 * DAY_NS));
    Repository::with(store, 0, clock)
}

/// Builds a store from `bytes` and works with it; returns the number of exported entries, which
/// shows whether anything was tested.
pub fn run(bytes: &[u8]) -> u64 {
    let mut exported = 0;
    let mut choices = Choices::new(bytes);
    let repository = forge(&mut choices);
    let mut sets = Vec::new();
    for named in repository.names().into_iter().flatten() {
        if let Ok(namespace) = repository.open(&[named.set], Identity::root()) {
            read(&namespace);
            exported += export(&namespace);
        }
        sets.push(named.set);
        if let Ok(session) = repository.begin(&[named.set], options()) {
            change(&session, &mut choices);
            let _ = session.publish(&format!("{}-changed", named.name));
        }
        let _ =
            repository.squash(&[named.set], &SquashOptions { threads: 1, ..Default::default() });
    }
    compose(&repository, &sets);
    let _ = repository.verify(&VerifyOptions { threads: 1, ..VerifyOptions::default() });
    let eager = GcOptions {
        grace: Duration::ZERO,
        dry_run: false,
        scan_data: true,
        ..GcOptions::default()
    };
    for _ in 0..2 {
        let _ = repository.gc(&eager);
    }
    exported
}

fn options() -> SessionOptions {
    let tree = TreeOptions {
        background: false,
        memory_bytes: 1 << 20,
        durability: Durability::None,
        ..TreeOptions::default()
    };
    SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() }
}

/// The index of a column.
pub fn column(schema: &Schema, name: &str) -> usize {
    schema.ints.iter().position(|column| column.name == name).expect("a column of the schema")
}

/// A record of `name` in the directory `dir`; `ints` are columns by name.
pub fn record(dir: u128, name: &[u8], ints: &[(&str, u64)], content: &[u8]) -> RowBuffer {
    let mut row = RowBuffer::default();
    let hash = name_hash(name);
    for (at, int) in [(dir >> 64) as u64, dir as u64, hash].into_iter().enumerate() {
        row.ints[at] = int;
    }
    for (name, value) in [("seq", 1), ("nlink", 1)].iter().chain(ints) {
        row.ints[column(&INODE, name)] = *value;
    }
    (row.strings[0], row.strings[1]) = (name.to_vec(), content.to_vec());
    row
}

/// Puts a table of `rows`, in readable form, into `set`.
pub fn put_table(
    store: &SharedStore,
    (set, number): (SetId, u64),
    schema: &'static Schema,
    mut rows: Vec<RowBuffer>,
) -> TableRef {
    rows.sort_by(|a, b| schema.key(&a.row()).cmp(&schema.key(&b.row())));
    rows.dedup_by(|a, b| schema.key(&a.row()) == schema.key(&b.row()));
    let mut reference = TableRef {
        set,
        number: 1 << 32 | number,
        schema: schema.id,
        run: number,
        bytes: 0,
        tail_bytes: 0,
        rows: 0,
        seq_max: 0,
        first: KeyBuffer::default(),
        last: KeyBuffer::default(),
    };
    let object = store.create(&reference.name()).expect("a new object");
    let mut writer = TableWriter::new(schema, object);
    for row in &mut rows {
        schema.store(&mut row.ints);
        writer.push(&row.row()).expect("a store in memory");
    }
    let summary = writer.finish().expect("a store in memory");
    (reference.bytes, reference.tail_bytes) = (summary.bytes, summary.tail_bytes);
    (reference.rows, reference.seq_max) = (summary.rows, summary.seq_max);
    (reference.first, reference.last) = (summary.first, summary.last);
    reference
}

/// Publishes `set` with `tables` above `bases`.
pub fn publish(store: &SharedStore, set: SetId, bases: &[SetId], tables: Vec<TableRef>) {
    let mut manifest = Manifest::new(bases.to_vec(), MADE_NS);
    manifest.state = SetState::Sealed;
    manifest.last_seq = tables.iter().map(|table| table.seq_max).max().unwrap_or(0);
    manifest.tables = tables;
    let _ = manifest.claim(&**store, set, MADE_NS);
    let name = format!("n{:x}", set.0);
    for base in bases {
        let _ = marker::hold(&**store, *base, &MarkerHolder::Set(set));
    }
    let clock = Arc::new(ManualClock::new(MADE_NS));
    let _ = Repository::with(store.clone(), 0, clock).publish(set, &name);
}

fn forge_set(store: &SharedStore, set: SetId, hostility: Hostility, choices: &mut Choices) {
    let log: Vec<u8> = (0..LOG_BYTES).map(|at| (at % 251) as u8).collect();
    let _ = store.put_if_absent(&format!("set/{set}/data/00000001-00000000"), &log);
    let mut tables = Vec::new();
    for number in 0..1 + choices.below(2) as u64 {
        let rows: Vec<_> = (0..1 + choices.below(RECORDS_MAX))
            .map(|_| forge_record(set, &log, hostility, choices))
            .collect();
        tables.push(put_table(store, (set, number), &INODE, rows));
    }
    if choices.u8() < 0x40 {
        let rows = (0..1 + choices.below(8)).map(|_| forge_segment(set, choices)).collect();
        tables.push(put_table(store, (set, 7), &SEGMENT, rows));
    }
    if let (true, Some(table)) = (is_hostile(hostility, choices), tables.first_mut()) {
        // A table that claims to be another set's, or to have more than it has.
        match choices.u8() % 4 {
            0 => table.set = SetId(1 + choices.u64() as u128 % SETS),
            1 => table.rows = choices.u64(),
            2 => table.seq_max = choices.u64(),
            _ => table.run = choices.u64(),
        }
    }
    let highest = if is_hostile(hostility, choices) { SETS } else { set.0 - 1 };
    let bases: Vec<SetId> = (0..choices.below(3).min(highest as usize))
        .map(|_| SetId(1 + u128::from(choices.u8()) % highest))
        .collect();
    publish(store, set, &bases, tables);
}

/// Decides whether to add another thing that no session writes.
fn is_hostile(hostility: Hostility, choices: &mut Choices) -> bool {
    choices.u8() > !hostility.level
}

fn forge_record(set: SetId, log: &[u8], hostility: Hostility, choices: &mut Choices) -> RowBuffer {
    // The deeper a directory, the fewer its records.
    let dir = (choices.u8() % 16).trailing_zeros().min(DIRECTORIES as u32 - 1) as u64;
    let is_linked_file = choices.u8() < 0x10;
    let name = forge_name(is_linked_file, hostility, choices);
    let dir = if is_linked_file { u128::MAX } else { u128::from(dir) };
    let entry = match choices.u8() {
        0..0x60 => 2,
        0x60..0xE0 => 1,
        // Other files, and tombstones; links and unknown kinds are rarer.
        other if !is_hostile(hostility, choices) => [0, 3, 4, 5, 6][usize::from(other % 5)],
        other => u64::from(other % 11),
    };
    let id = match entry {
        2 => (dir as u64 % DIRECTORIES) + 1 + choices.below(DIRECTORIES as usize) as u64,
        _ => u64::from(choices.u8() % 4),
    };
    let content = match choices.u8() {
        _ if !matches!(entry, 1 | 3) && !is_hostile(hostility, choices) => Vec::new(),
        0..0x80 => b"../../outside".to_vec(),
        0x80..0xA0 => choices.string(5_000),
        _ => Vec::new(),
    };
    let mut ints = vec![("entry", entry), ("id_low", id), ("mode", 0o4755)];
    ints.push(("size", content.len() as u64));
    ints.extend([("uid", u64::from(choices.u8() % 3)), ("nlink", u64::from(choices.u8() % 3))]);
    let mut content = content;
    if entry == 1 && choices.u8() < 0x60 {
        let offset = choices.below(log.len() / 2);
        let length = choices.below(log.len() / 2);
        let checksum = crc32c::crc32c(&log[offset..offset + length]);
        content.clear();
        ints.extend([
            ("size", length as u64),
            ("log_set_high", (set.0 >> 64) as u64),
            ("log_set_low", set.0 as u64),
            ("log", 1 << 32),
            ("log_offset", offset as u64),
            ("log_length", length as u64),
            ("log_written", length as u64),
            ("log_checksum", u64::from(checksum)),
        ]);
    }
    // Replaces some columns by arbitrary numbers.
    while is_hostile(hostility, choices) {
        let at = 3 + choices.below(INODE.ints.len() - 3);
        ints.push((INODE.ints[at].name, choices.u64()));
    }
    if dir != u128::MAX && entry == 2 {
        // Without loops, directories lead only downwards.
        let anywhere = choices.below(2 * DIRECTORIES as usize) as u64;
        let id = if hostility.has_loops { anywhere } else { id };
        ints.extend([("id_high", 0), ("id_low", id)]);
    }
    let mut row = record(dir, &name, &ints, &content);
    row.strings[2] = match choices.u8() {
        0..0x10 => choices.string(300),
        0x10..0x20 => b"\x06user.a\x01b".to_vec(),
        _ => Vec::new(),
    };
    row
}

/// A plain name, an impossible one, or that of an inode with several names.
fn forge_name(is_linked_file: bool, hostility: Hostility, choices: &mut Choices) -> Vec<u8> {
    let plain = [b'a' + choices.u8() % 6];
    if is_linked_file {
        u128::from(choices.u8() % 4).to_be_bytes().to_vec()
    } else if is_hostile(hostility, choices) {
        NAMES[choices.below(NAMES.len())].to_vec()
    } else if is_hostile(hostility, choices) {
        choices.string(300)
    } else {
        plain.to_vec()
    }
}

fn forge_segment(set: SetId, choices: &mut Choices) -> RowBuffer {
    let mut row = RowBuffer::default();
    for int in &mut row.ints[..SEGMENT.ints.len()] {
        *int = choices.u64();
    }
    (row.ints[0], row.ints[1]) = (0, u64::from(choices.u8() % 4));
    if choices.u8() < 0xC0 {
        let (end, length) = (1 + choices.below(1 << 16) as u64, 1 + choices.below(4_000) as u64);
        let places = [
            ("length", length.min(end)),
            ("set_high", (set.0 >> 64) as u64),
            ("set_low", set.0 as u64),
            ("log", 1 << 32),
            ("log_offset", choices.below(LOG_BYTES) as u64),
            ("checksum", 0),
        ];
        row.ints[2] = end;
        for (name, value) in places {
            if let Some(at) = SEGMENT.ints.iter().position(|column| column.name == name) {
                row.ints[at] = value;
            }
        }
    }
    row
}

/// Composes `sets`, searches them for conflicts, compares the first with all of them, and resolves what
/// can be resolved.
fn compose(repository: &Repository, sets: &[SetId]) {
    let composed = repository.open(sets, Identity::root());
    let one = sets.first().map(|set| repository.open(&[*set], Identity::root()));
    if let (Ok(composed), Some(Ok(one))) = (&composed, &one) {
        read(composed);
        let mut differences = 0;
        let _ = diff((one, b"/"), (composed, b"/"), &mut |_| {
            differences += 1;
            let stop = || Error::new(Kind::TooLarge, "enough");
            if differences < VISITS_MAX { Ok(()) } else { Err(stop()) }
        });
    }
    if let Ok(composition) = ComposedBases::open(repository, sets) {
        let _ = composition.find_conflicts(&mut |_, conflict| {
            assert!(!conflict.versions.is_empty());
            Ok(())
        });
        if let Ok(session) = repository.begin(sets, options()) {
            let _ = session.show_newest_versions(&composition, &mut |_, _| Ok(()));
        }
    }
}

/// Walks over everything that `namespace` shows, and reads the beginning and end of each file.
fn read(namespace: &Namespace) {
    let mut visits = 0;
    let _ = namespace.traverse(b"/", FollowLinks::Yes, WalkOrder::Name, &mut |step| {
        visits += 1;
        if let WalkStep::Entry(visit) = step {
            read_file(namespace, visit.inode);
            let _ = namespace.xattrs(visit.inode);
            let _ = namespace.stat(visit.path, FollowLinks::Yes);
        }
        Ok(if visits < VISITS_MAX { WalkNext::Into } else { WalkNext::Stop })
    });
    let _ = namespace.usage(b"/", &mut |_, _| Ok(()), &mut |_, _| {});
}

fn read_file(namespace: &Namespace, inode: &Inode) {
    for offset in [0, 100, inode.size.saturating_sub(10), u64::MAX - 5] {
        if let Ok(bytes) = namespace.read(inode, offset, 1 << 16) {
            assert!(bytes.len() <= 1 << 16);
        }
    }
    let _ = namespace.backing_file(inode);
}

/// Exports all of `namespace` to a directory beside which nothing may change; returns the number of
/// entries.
fn export(namespace: &Namespace) -> u64 {
    let around = tempfile::tempdir().expect("a directory");
    let target = around.path().join("middle/target");
    std::fs::create_dir(around.path().join("middle")).expect("a directory");
    std::fs::write(around.path().join("middle/sentinel"), "as it was").expect("a file");
    let tally = TransferTally::default();
    let _ = namespace.export(
        b"/",
        &target,
        &ExportOptions { threads: 1, ..Default::default() },
        &tally,
    );
    assert_eq!(names_in(around.path()), ["middle"]);
    let middle = names_in(&around.path().join("middle"));
    assert!(middle.iter().all(|name| name == "sentinel" || name == "target"), "{middle:?}");
    let sentinel = std::fs::read(around.path().join("middle/sentinel")).expect("a file");
    assert_eq!(sentinel, b"as it was");
    tally.counts().entries()
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = path.read_dir().expect("a directory").flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Changes names of all kinds; each change succeeds or is refused.
fn change(session: &Session, choices: &mut Choices) {
    let root = session.root().clone();
    for _ in 0..12 {
        let name = [b'a' + choices.u8() % 6];
        let other = [b'a' + choices.u8() % 6];
        let _: Result<()> = match choices.u8() % 8 {
            0 => session.unlink(&root, &name).map(drop),
            1 => session.rmdir(&root, &name).map(drop),
            2 => session.remove_tree(&root, &name),
            3 => session.mkdir(&root, &name, 0o755).map(drop),
            4 => session.link(&root, &name, &root, &other).map(drop),
            5 => session.rename((&root, &name), (&root, &other), RenameFlags::Exchange).map(drop),
            6 => session.rename((&root, &name), (&root, &other), RenameFlags::Replace).map(drop),
            _ => session.open_file(&root, &name).and_then(|file| {
                let _ = session.file(&file).write(choices.below(10_000) as u64, b"changed");
                session.close_file(file)
            }),
        };
    }
}

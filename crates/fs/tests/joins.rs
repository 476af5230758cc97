// SPDX-License-Identifier: Apache-2.0
//! Joins of parts, as programs of a few words: what a base has, what each part does, and what the
//! job then shows. In each, parts removed or moved what others changed.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_fs::inode::FileKind;
use esker_fs::job::{ConflictKind, JobId, JobReport};
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::Namespace;
use esker_table::manifest::{Manifest, SetId};

use crate::gc::{eager, later, options, repository, write};
use crate::interrupted_store::Interrupted;
use crate::verify::assert_sound;

/// Bytes of what `big` makes, which is in the extent table.
const BIG: usize = 3 << 20;

/// Does what `program` says: calls that are separated by semicolons.
fn run(session: &Session, program: &str) {
    for call in program.split(';').map(str::trim).filter(|call| !call.is_empty()) {
        let words: Vec<&str> = call.split(' ').collect();
        match words[..] {
            ["mkdir", path] => {
                let (dir, name) = locate(session, path);
                session.mkdir(&dir, name, 0o755).map(drop)
            }
            ["make", path, text] => write(session, path, text.as_bytes()),
            ["big", path] => {
                let (dir, name) = locate(session, path);
                let file = session.create_file(&dir, name, 0o644).expect("create");
                session.close_file(file).expect("close");
                put(session, path, BIG / 2, &vec![7; BIG / 2]);
                put(session, path, 0, &vec![7; BIG / 2]);
                Ok(())
            }
            ["put", path, at, count, byte] => {
                let bytes = vec![byte.parse().expect("a byte"); count.parse().expect("a count")];
                put(session, path, at.parse().expect("an offset"), &bytes);
                Ok(())
            }
            ["cut", path, size] => {
                let size = Some(size.parse().expect("a size"));
                set(session, path, AttributeChanges { size, ..AttributeChanges::default() });
                Ok(())
            }
            ["chmod", path, mode] => {
                let mode = Some(u32::from_str_radix(mode, 8).expect("a mode"));
                set(session, path, AttributeChanges { mode, ..AttributeChanges::default() });
                Ok(())
            }
            ["mv", from, to] => rename(session, from, to, RenameFlags::Replace),
            ["swap", from, to] => rename(session, from, to, RenameFlags::Exchange),
            ["ln", from, to] => {
                let ((dir, name), (other, new)) = (locate(session, from), locate(session, to));
                session.link(&dir, name, &other, new).map(drop)
            }
            ["rm", path] => {
                let (dir, name) = locate(session, path);
                session.unlink(&dir, name).map(drop)
            }
            ["rmdir", path] => {
                let (dir, name) = locate(session, path);
                session.rmdir(&dir, name).map(drop)
            }
            ["rmr", path] => {
                let (dir, name) = locate(session, path);
                session.remove_tree(&dir, name)
            }
            _ => panic!("{call}"),
        }
        .unwrap_or_else(|error| panic!("{call}: {error}"));
    }
}

fn locate<'a>(session: &Session, path: &'a str) -> (Dir, &'a [u8]) {
    let (dir, name) = path.rsplit_once('/').expect("a path");
    let dir = if dir.is_empty() { "/" } else { dir };
    (session.dir(dir).unwrap_or_else(|error| panic!("{path}: {error}")), name.as_bytes())
}

fn put(session: &Session, path: &str, at: usize, bytes: &[u8]) {
    let (dir, name) = locate(session, path);
    let file = session.open_file(&dir, name).expect("open");
    session.file(&file).write(at as u64, bytes).expect("write");
    session.close_file(file).expect("close");
}

fn set(session: &Session, path: &str, changes: AttributeChanges) {
    let (dir, name) = locate(session, path);
    session.setattr(&dir, name, &changes).expect("setattr");
}

fn rename(session: &Session, from: &str, to: &str, flags: RenameFlags) -> esker_base::Result<()> {
    let ((dir, name), (other, new)) = (locate(session, from), locate(session, to));
    session.rename((&dir, name), (&other, new), flags).map(drop)
}

/// Returns a line for each path: the path, the content and the mode. Content over 64 bytes is given
/// as runs of equal bytes.
fn lines(namespace: &Namespace) -> Vec<String> {
    let (mut found, mut waiting) = (Vec::new(), vec![(String::new(), namespace.root().clone())]);
    while let Some((parent, dir)) = waiting.pop() {
        let listed = namespace.read_dir(&dir, &DirCursor::default(), usize::MAX).expect("list");
        for entry in listed {
            let path = format!("{parent}/{}", String::from_utf8_lossy(&entry.name));
            let mut bytes = Vec::new();
            if entry.inode.kind() == Some(FileKind::File) {
                let mut take = |piece: &[u8]| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                };
                namespace.read_all(&entry.inode, &mut take).expect("read");
            }
            let mut content = String::from_utf8_lossy(&bytes).into_owned();
            if bytes.len() > 64 {
                let runs = bytes.chunk_by(|a, b| a == b);
                let runs = runs.map(|run| format!("{}x{}", run.len(), run[0]));
                content = runs.collect::<Vec<_>>().join("+");
            }
            found.push(format!("{path} {content} {:o}", entry.inode.mode & 0o777));
            if entry.inode.is_directory() {
                waiting.push((path.clone(), namespace.dir(&path).expect("dir")));
            }
        }
    }
    found.sort();
    found
}

fn open(repository: &Repository, set: SetId) -> Vec<String> {
    lines(&repository.open(&[set], Identity::root()).expect("open"))
}

/// Begins, runs and completes parts on top of `base`.
fn parts(repository: &Repository, job: u128, base: SetId, ranks: &[&str]) -> Vec<SetId> {
    let mut parts = Vec::new();
    for (rank, program) in (0..).zip(ranks) {
        let session = repository.begin_part(JobId(job), rank, &[base], options()).expect("begin");
        run(&session, program);
        parts.push(session.complete().expect("complete"));
    }
    parts
}

fn base(repository: &Repository, program: &str) -> SetId {
    let session = repository.begin(&[], options()).expect("begin");
    run(&session, program);
    session.publish("base").expect("publish")
}

struct Joined {
    repository: Repository,
    report: JobReport,
    lines: Vec<String>,
    /// The lines of each part.
    parts: Vec<Vec<String>>,
}

/// Joins parts that run `ranks` on top of what `program` makes.
fn join(program: &str, ranks: &[&str]) -> Joined {
    let repository = repository(&(Arc::new(MemoryStore::new()) as _));
    let base = base(&repository, program);
    let sets = parts(&repository, 1, base, ranks);
    let report = repository.publish_job(&sets, "job").expect("publish");
    assert_sound(&repository);
    let mut names: Vec<_> = report.conflicts.iter().map(|own| (own.dir, &own.name)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), report.conflicts.len(), "one conflict a name: {report:#?}");
    let parts = sets.iter().map(|part| open(&repository, *part)).collect();
    let lines = open(&repository, report.set);
    Joined { repository, report, lines, parts }
}

/// A base, what its parts do, and how the lines begin that the job shows, and shows not.
type Case =
    (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

fn check(cases: &[Case]) {
    for (program, ranks, shown, hidden) in cases {
        let Joined { lines, report, .. } = join(program, ranks);
        let has = |start: &&&str| lines.iter().any(|line| line.starts_with(**start));
        let what = format!("{program} | {}: {lines:#?} {:#?}", ranks.join(" | "), report.conflicts);
        assert_eq!(shown.iter().find(|start| !has(start)), None, "{what}");
        assert_eq!(hidden.iter().find(|start| has(start)), None, "{what}");
    }
}

#[test]
fn changes_in_trees_that_another_part_removed_are_shown() {
    check(&[
        // A base had moved the directory.
        (
            "mkdir /p; mkdir /p/a; make /p/a/x base; mv /p/a /p/d",
            &["chmod /p/d 700; rmr /p", "chmod /p/d/x 600"],
            &["/p/d/x base 600", "/p/d  755"],
            &[],
        ),
        (
            "mkdir /p; mkdir /p/a; make /p/y base; make /p/a/x base; mv /p/a /p/d",
            &["chmod /p/d 700; make /p/d/stale s; rm /p/d/x; rmr /p", "chmod /p/y 600"],
            &["/p/d/x base", "/p/y base 600"],
            &["/p/d/stale"],
        ),
        // Another part removed it, too, and made a file.
        (
            "mkdir /d; mkdir /d/s; make /d/s/y base",
            &["rmr /d", "rmr /d; make /d file", "chmod /d/s/y 600"],
            &["/d/s/y base 600"],
            &[],
        ),
        (
            "mkdir /d; mkdir /d/s; make /d/s/y base",
            &["rmr /d; make /d file", "rmr /d; make /d file", "chmod /d/s/y 600"],
            &["/d/s/y base 600"],
            &[],
        ),
        // The changing part is not the first that changed something.
        (
            "mkdir /d; make /d/y base; big /d/big",
            &["chmod /d/y 600", "put /d/big 0 10 1; rmr /d", "put /d/big 100 5000 2"],
            &["/d/big 100x7+5000x2+3140628x7", "/d/y base 600"],
            &[],
        ),
        // A file was moved out of the tree, or from there to what is not shown.
        (
            "mkdir /d; big /d/f; make /d/x base",
            &["put /d/f 0 10 1; rmr /d; mkdir /d", "mv /d/f /g; put /g 100 10 2"],
            &["/g 100x7+10x2+3145618x7"],
            &[],
        ),
        ("mkdir /d; big /d/f", &["put /d/f 0 10 1; rmr /d", "mv /d/f /g"], &["/g 3145728x7"], &[]),
        (
            "mkdir /d; make /d/a base; ln /d/a /d/b; make /d/y y",
            &["mv /d/a /k; rmr /d", "chmod /d/y 600"],
            &["/k base", "/d/b base", "/d/y y 600"],
            &["/d/a"],
        ),
    ]);
}

#[test]
fn records_in_directories_that_their_part_does_not_show_are_not_shown() {
    check(&[
        (
            "mkdir /d; make /d/x base; make /d/y base",
            &["chmod /d/y 640; rm /d/x; rmr /d; mkdir /d", "mv /d /e"],
            &["/e/x base", "/e/y base 644"],
            &[],
        ),
        (
            "mkdir /d; mkdir /d/s; make /d/s/y base",
            &["rm /d/s/y; make /d/s/y AAA; rmr /d; mkdir /d", "mv /d/s /s; rm /s/y; make /s/y BBB"],
            &["/s/y BBB"],
            &[],
        ),
        (
            "mkdir /d; make /d/y base; big /d/1; ln /d/1 /d/2",
            &["put /d/1 0 10 1; chmod /d/1 640; rmr /d", "chmod /d/y 600"],
            &["/d/1 3145728x7 644", "/d/2 3145728x7 644"],
            &[],
        ),
        (
            "make /x base",
            &["mkdir /d; make /d/secret s; rmr /d", "mkdir /d"],
            &["/d "],
            &["/d/secret"],
        ),
        (
            "mkdir /p",
            &["mkdir /p/x; make /p/x/stale s; rmr /p", "mkdir /p/x"],
            &["/p/x"],
            &["/p/x/stale"],
        ),
        (
            "mkdir /d; make /d/x base; make /d/y base",
            &["make /d/stale s; rm /d/y; rmr /d; make /d file", "rm /d/x"],
            &["/d file"],
            &["/d/stale"],
        ),
        (
            "mkdir /p; mkdir /k; make /p/y y; make /k/x x",
            &["mv /k /p/k; make /p/k/own o; rmr /p", "chmod /p/y 600"],
            &["/p/y y 600"],
            &["/p/k", "/k"],
        ),
    ]);
}

#[test]
fn of_a_directory_and_a_file_of_one_name_the_directory_is_shown() {
    check(&[
        ("", &["make /n file", "mkdir /n; make /n/kept text"], &["/n/kept text"], &[]),
        ("", &["mkdir /n; make /n/kept text", "make /n file"], &["/n/kept text"], &[]),
    ]);
}

#[test]
fn a_directory_is_at_one_path() {
    check(&[
        (
            "mkdir /k; mkdir /p; mkdir /p/q; make /p/y y; make /k/x x",
            &["mv /p/q /q; mv /k /p/q; rmr /p", "mv /p /k/p"],
            &["/k/x x", "/k/p/y y", "/q "],
            &["/k/p/q"],
        ),
        (
            "mkdir /p; make /p/f f; make /p/y base; mkdir /k; make /k/x base",
            &["swap /p/f /k; rmr /p", "chmod /p/y 600; chmod /k/x 600"],
            &["/p/y base 600"],
            &[],
        ),
        (
            "mkdir /p; make /p/y y",
            &["mkdir /p/x; mv /p/x /z; rmr /p", "mkdir /p/x; make /p/x/f f"],
            &["/z/f f"],
            &["/p/x"],
        ),
        // A part that changed a directory where a base had moved it does not move it.
        (
            "mkdir /a; mv /a /d; make /d/x base",
            &["chmod /d 700", "make /own o; mv /d /e"],
            &["/e/x base"],
            &["/d"],
        ),
        // A part that removed what it had moved does not move it.
        (
            "mkdir /d; make /d/x base",
            &["mkdir /n; mv /d /n/d; rmr /n", "make /own o; mv /d /f"],
            &["/f/x base"],
            &["/d", "/n"],
        ),
    ]);
}

#[test]
fn a_changed_file_with_several_names_keeps_one() {
    check(&[
        (
            "mkdir /d; make /d/l base; ln /d/l /keep",
            &["rm /keep", "chmod /keep 600; rmr /d"],
            &["/keep base 600"],
            &[],
        ),
        (
            "make /a base; ln /a /b",
            &["mkdir /n; ln /a /n/1; ln /a /n/2; rm /a; rm /b; rmr /n", "chmod /a 600"],
            &["/a base 600", "/b base 600"],
            &[],
        ),
        (
            "mkdir /d; big /d/1; ln /d/1 /d/2",
            &["rmr /d", "put /d/1 100 5000 2"],
            &["/d/1 100x7+5000x2", "/d/2 100x7+5000x2"],
            &[],
        ),
        ("big /1; ln /1 /2", &["rm /1; rm /2", "put /1 100 5000 2"], &["/1 100x7+5000x2"], &[]),
        (
            "make /a base; ln /a /b",
            &["make /n n", "make /o o; chmod /a 600; mv /a /n; rm /b"],
            &["/n n", "/b base 600"],
            &[],
        ),
        (
            "mkdir /d; mkdir /e; make /d/a base; ln /d/a /e/b; ln /d/a /c",
            &["rm /c", "chmod /c 600; rmr /d; rm /e/b", "rmr /e"],
            &["/c base 600"],
            &[],
        ),
        (
            "mkdir /d; make /a base; ln /a /b",
            &["rm /b; mv /a /d/a", "rmr /d; chmod /a 600"],
            &["/d/a base 600"],
            &[],
        ),
    ]);
}

#[test]
fn a_changed_file_whose_only_name_another_part_took_is_reported() {
    let ranks = ["make /o o; chmod /f 600", "mv /g /f"];
    let joined = join("make /f base; ln /f /e; rm /e; make /g g", &ranks);
    assert!(joined.lines.iter().any(|line| line.starts_with("/f g")), "{:?}", joined.lines);
    let [conflict] = &joined.report.conflicts[..] else { panic!("{:?}", joined.report) };
    assert_eq!((conflict.kind, conflict.losers.len()), (ConflictKind::SameName, 1));
}

#[test]
fn a_file_that_its_part_changed_and_removed_is_gone() {
    check(&[("make /f base; ln /f /g", &["cut /f 2; rm /f; rm /g", "rm /f"], &[], &["/f", "/g"])]);
}

/// Symptom: a file had the size of one part and the content of another, with zeros at the end.
#[test]
fn size_and_content_are_of_one_part() {
    for other in ["put /f 3145728 1048576 3", "cut /f 5"] {
        for swap in [false, true] {
            let mut ranks = ["put /f 0 10 2", other];
            if swap {
                ranks.reverse();
            }
            let Joined { lines, parts, report, .. } = join("big /f", &ranks);
            assert!(parts.contains(&lines), "{lines:?}");
            assert_eq!(report.conflicts.len(), 1);
        }
    }
}

/// Returns the lines of a session on top of the job that runs `program`.
fn lines_after(joined: &Joined, program: &str) -> Vec<String> {
    let session = joined.repository.begin(&[joined.report.set], options()).expect("begin");
    run(&session, program);
    lines(&session)
}

#[test]
fn directories_made_later_show_nothing_of_others() {
    let secret = "make /f/secret s; rmr /f";
    let joined = join(
        "mkdir /d; make /d/x base",
        &["mv /d /e", "mv /d /f", &format!("mkdir /f; rmr /f; mkdir /f; {secret}")],
    );
    let found = lines_after(&joined, "mkdir /f");
    assert!(!found.iter().any(|line| line.contains("secret")), "{found:?}");
    let removals =
        "rmr /d; mkdir /d; make /d/secret1 1; rmr /d; mkdir /d; make /d/secret2 2; rmr /d";
    let joined = join("mkdir /d; make /d/x x", &[removals, "chmod /d/x 600"]);
    let found = lines_after(&joined, "rmr /d; mkdir /d");
    assert!(!found.iter().any(|line| line.contains("secret")), "{found:?}");
}

#[test]
fn a_directory_made_later_does_not_show_the_entries_of_one_that_was_not_shown() {
    let joined = join("mkdir /e", &["mv /e /n", "mkdir /n; make /n/lost text"]);
    assert_eq!(joined.lines, ["/n  755"]);
    assert_eq!(joined.report.conflicts[0].kind, ConflictKind::SameName);
    assert_eq!(lines_after(&joined, "rmdir /n; mkdir /n"), ["/n  755"]);
}

#[test]
fn a_second_job_finds_changes_in_a_directory_whose_generation_was_raised() {
    let joined = join(
        "mkdir /p; mkdir /p/d; make /p/d/x x",
        &["rmr /p/d; mkdir /p/d; rmdir /p/d", "chmod /p/d/x 600"],
    );
    let ranks = ["chmod /p/d 700; rmr /p", "chmod /p/d/x 640"];
    let parts = parts(&joined.repository, 2, joined.report.set, &ranks);
    let report = joined.repository.publish_job(&parts, "second").expect("publish");
    let found = open(&joined.repository, report.set);
    assert!(found.contains(&"/p/d/x x 640".to_owned()), "{found:?}");
    assert!(!report.conflicts.is_empty());
}

#[test]
fn what_one_part_moved_and_removed_is_not_reported_as_unreachable() {
    let ranks = ["mkdir /n; mv /d /n/d; rmr /n; chmod /f 600", "chmod /f 640"];
    let joined = join("mkdir /d; make /d/x base; make /f base", &ranks);
    let is_unreachable = |kind| kind == ConflictKind::Unreachable;
    assert!(!joined.report.conflicts.iter().any(|own| is_unreachable(own.kind)));
}

#[test]
fn all_removals_of_a_tree_are_one_conflict() {
    let ranks = ["rmr /d", "rmr /d", "rmr /d", "chmod /d/x 600"];
    let Joined { report, .. } = join("mkdir /d; make /d/x x", &ranks);
    assert_eq!((report.conflicts.len(), report.conflicts[0].losers.len()), (1, 3));
}

/// Symptom: the bases of parts that began on different snapshots were laid over each other, and
/// what one base removed or moved hid changes on top of another, without a report.
#[test]
fn parts_on_different_bases_are_refused() {
    let repository = repository(&(Arc::new(MemoryStore::new()) as _));
    let first = base(&repository, "mkdir /d; make /d/x base");
    let session = repository.begin(&[first], options()).expect("begin");
    run(&session, "rmr /d");
    let second = session.publish("second").expect("publish");
    let mut sets = parts(&repository, 1, first, &["chmod /d/x 600"]);
    let session = repository.begin_part(JobId(1), 1, &[second], options()).expect("begin");
    run(&session, "make /z z");
    sets.push(session.complete().expect("complete"));
    let error = repository.publish_job(&sets, "job").expect_err("other bases");
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.to_string().contains("different snapshots"), "{error}");
}

#[test]
fn properties_on_which_parts_differ_stay_with_the_parts() {
    let repository = repository(&(Arc::new(MemoryStore::new()) as _));
    let mut sets = Vec::new();
    for (rank, value) in (0..).zip(["a", "b", "c"]) {
        let properties = [("own", value), ("common", "x")];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let own = SessionOptions { properties, ..options() };
        let session = repository.begin_part(JobId(1), rank, &[], own).expect("begin");
        run(&session, &format!("make /{value} 1"));
        sets.push(session.complete().expect("complete"));
    }
    let report = repository.publish_job(&sets, "job").expect("publish");
    let found = Manifest::load(&**repository.store(), report.set).expect("manifest").properties;
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("common".to_owned(), "x".to_owned())]);
}

/// A base and parts that take everything of a join: a tree whose removal is withdrawn, with content
/// to cover, links to count, and a new file.
fn wide_job(store: &SharedStore) -> Vec<SetId> {
    let repository = repository(store);
    let base = base(&repository, "mkdir /d; make /d/y base; big /d/big; ln /d/y /d/z");
    parts(&repository, 1, base, &["chmod /d/y 600", "put /d/big 0 10 1; rmr /d", "make /d/new n"])
}

#[test]
fn a_join_that_stops_anywhere_is_repeated_or_whole() {
    let build = || {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let sets = wide_job(&store);
        (store, sets)
    };
    let (store, sets) = build();
    let counter = Arc::new(FaultStore::new(store.clone(), 1));
    let joined = repository(&(counter.clone() as _)).publish_job(&sets, "job").expect("publish");
    let whole = open(&repository(&store), joined.set);
    for stop in 1..=counter.operations() {
        for effect in [FaultEffect::None, FaultEffect::Full] {
            let (store, sets) = build();
            let fault = Arc::new(FaultStore::new(store, stop));
            fault.stop_at(stop, effect);
            drop(repository(&(fault.clone() as _)).publish_job(&sets, "job"));
            let image = fault.after_power_loss().expect("image");
            let plain = repository(&image);
            let set = match plain.resolve("job") {
                Ok(name) => name.set,
                Err(_) => plain.publish_job(&sets, "job").expect("publish again").set,
            };
            later(&image).gc(&eager()).expect("gc");
            assert_eq!(open(&plain, set), whole, "{stop} {effect:?}");
            assert_sound(&plain);
        }
    }
}

#[test]
fn a_collection_beside_a_join_takes_nothing_of_it() {
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let sets = wide_job(&store);
        let inner = store.clone();
        let collect = Box::new(move || drop(later(&inner).gc(&eager()).expect("gc")));
        let interrupted = Interrupted::new(store.clone(), at, collect);
        let joined = repository(&(interrupted.clone() as _)).publish_job(&sets, "job");
        if !interrupted.has_happened() {
            assert!(at > 20, "{at}");
            break;
        }
        let joined = joined.unwrap_or_else(|error| panic!("at {at}: {error}"));
        let plain = repository(&store);
        plain.gc(&eager()).expect("gc");
        assert!(open(&plain, joined.set).contains(&"/d/new n 644".to_owned()), "at {at}");
        assert_sound(&plain);
    }
}

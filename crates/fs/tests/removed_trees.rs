// SPDX-License-Identifier: Apache-2.0
//! Jobs in which one part removed a directory and another changed something in it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use esker_base::Random;
use esker_base::store::MemoryStore;
use esker_fs::inode::{DirId, FileKind, Inode};
use esker_fs::job::{ConflictKind, JobId, JobReport, PartConflict};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::SetId;

use crate::gc::{eager, options, repository, write};
use crate::verify::assert_sound;

/// Bytes of `/d/big`, which are in the extent table.
const BIG: usize = 3 << 20;

/// What a part does.
type Change = fn(&Session);

/// Runs each of `ranks` on top of a base: `/d` with the files `x`, `l` and `big` and the directory
/// `s` with the file `y`; `/keep`, which is a link of `/d/l`. Returns the tree of the job.
fn job(ranks: &[Change]) -> (Vec<String>, JobReport, Namespace) {
    let ranks: Vec<&[Change]> = ranks.iter().map(std::slice::from_ref).collect();
    job_of(&ranks)
}

/// Like [`job`], where each rank does several things.
fn job_of(ranks: &[&[Change]]) -> (Vec<String>, JobReport, Namespace) {
    let repository = repository(&(Arc::new(MemoryStore::new()) as _));
    let session = repository.begin(&[], options()).expect("begin");
    let root = session.root().clone();
    let d = session.mkdir(&root, b"d", 0o755).expect("mkdir");
    session.mkdir(&d, b"s", 0o755).expect("mkdir");
    for path in ["/d/x", "/d/s/y", "/keep"] {
        write(&session, path, b"base").expect("write");
    }
    session.link(&root, b"keep", &d, b"l").expect("link");
    let big = session.create_file(&d, b"big", 0o644).expect("create");
    session.file(&big).write((BIG / 2) as u64, &vec![7; BIG / 2]).expect("write");
    session.file(&big).write(0, &vec![7; BIG / 2]).expect("write");
    session.close_file(big).expect("close");
    let base = session.publish("base").expect("publish");
    let mut parts = Vec::new();
    for (rank, changes) in (0..).zip(ranks) {
        let session = repository.begin_part(JobId(1), rank, &[base], options()).expect("begin");
        changes.iter().for_each(|change| change(&session));
        parts.push(session.complete().expect("complete"));
    }
    let report = repository.publish_job(&parts, "job").expect("publish");
    assert_sound(&repository);
    repository.gc(&eager()).expect("gc");
    let shown = repository.open(&[report.set], Identity::root()).expect("open");
    (paths(&shown), report, shown)
}

/// Returns the paths of a namespace, sorted, with the content of small files and the number of
/// names of files that have several.
fn paths(namespace: &Namespace) -> Vec<String> {
    let mut found: Vec<String> = entries(namespace)
        .into_iter()
        .filter(|((dir, _), _)| *dir != DirId::LINKS)
        .map(|(_, entry)| format!("{}{}", entry.path, entry.content))
        .collect();
    found.sort();
    found
}

fn conflicts(report: &JobReport) -> Vec<(ConflictKind, Option<String>)> {
    let path = |conflict: &PartConflict| {
        conflict.path.clone().map(|path| String::from_utf8(path).expect("ASCII"))
    };
    report.conflicts.iter().map(|conflict| (conflict.kind, path(conflict))).collect()
}

fn remove_at_once(session: &Session) {
    session.remove_tree(session.root(), b"d").expect("remove");
}

fn remove_one_by_one(session: &Session) {
    let d = session.namespace().dir("/d").expect("dir");
    let s = session.namespace().dir("/d/s").expect("dir");
    session.unlink(&s, b"y").expect("unlink");
    session.rmdir(&d, b"s").expect("rmdir");
    for name in [&b"x"[..], b"l", b"big"] {
        session.unlink(&d, name).expect("unlink");
    }
    session.rmdir(session.root(), b"d").expect("rmdir");
}

/// Leaves changes of its own in what it removes.
fn change_and_remove(session: &Session) {
    write(session, "/d/s/own", b"1").expect("write");
    chmod(session, "/d", b"x", 0o600);
    let d = session.namespace().dir("/d").expect("dir");
    let cut = AttributeChanges { size: Some(5), ..AttributeChanges::default() };
    session.setattr(&d, b"big", &cut).expect("truncate");
    remove_at_once(session);
}

const REMOVALS: [Change; 3] = [remove_at_once, remove_one_by_one, change_and_remove];

fn chmod(session: &Session, dir: &str, name: &[u8], mode: u32) {
    let dir = session.namespace().dir(dir).expect("dir");
    let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
    session.setattr(&dir, name, &changes).expect("chmod");
}

fn change_deep_below(session: &Session) {
    chmod(session, "/d/s", b"y", 0o600);
}

fn rename(session: &Session, (from, name): (&str, &str), (to, new): (&str, &str)) {
    let (from, to) =
        (session.namespace().dir(from).expect("dir"), session.namespace().dir(to).expect("dir"));
    let (from, to) = ((&from, name.as_bytes()), (&to, new.as_bytes()));
    session.rename(from, to, RenameFlags::Replace).expect("rename");
}

/// The base's tree.
const WHOLE: [&str; 7] =
    ["/d", "/d/big 3145728x7", "/d/l base*2", "/d/s", "/d/s/y base", "/d/x base", "/keep base*2"];

/// Symptom: the change of a file below a directory that another part removed at once was in no
/// snapshot, and no conflict was reported; after removals one by one it was reported without a
/// path.
/// Cause: only records of one name were compared, and a removed directory has none below.
/// Fix: a removal of a tree in which another part changed something is withdrawn, and reported.
#[test]
fn a_tree_in_which_another_part_changed_something_stays_whole() {
    for removal in REMOVALS {
        for ranks in [[removal, change_deep_below], [change_deep_below, removal]] {
            let (tree, report, shown) = job(&ranks);
            assert_eq!(tree, WHOLE);
            assert_eq!(shown.stat("/d/s/y", FollowLinks::No).expect("stat").mode & 0o777, 0o600);
            assert_eq!(shown.stat("/d/x", FollowLinks::No).expect("stat").mode & 0o777, 0o644);
            let found = conflicts(&report);
            assert!(found.contains(&(ConflictKind::Removed, Some("/d".into()))), "{found:?}");
            assert!(found.iter().all(|(_, path)| path.is_some()), "{found:?}");
        }
    }
}

/// Each case: what another part does, and what the job then has beside or instead of the base's
/// entries.
#[test]
fn whatever_another_part_did_in_a_removed_tree_is_shown() {
    let cases: [(Change, &[&str], &[&str]); 6] = [
        (|session| write(session, "/d/s/new", b"n").expect("write"), &["/d/s/new n"], &[]),
        (|session| chmod(session, "/", b"d", 0o700), &[], &[]),
        (
            |session| rename(session, ("/", "d"), ("/", "e")),
            &["/e", "/e/big 3145728x7", "/e/l base*2", "/e/s", "/e/s/y base", "/e/x base"],
            &["/d", "/d/big 3145728x7", "/d/l base*2", "/d/s", "/d/s/y base", "/d/x base"],
        ),
        (
            |session| rename(session, ("/d", "s"), ("/", "s")),
            &["/s", "/s/y base"],
            &["/d/s", "/d/s/y base"],
        ),
        (
            |session| rename(session, ("/", "keep"), ("/d/s", "kept")),
            &["/d/s/kept base*2"],
            &["/keep base*2"],
        ),
        (
            |session| {
                let s = session.namespace().dir("/d/s").expect("dir");
                session.unlink(&s, b"y").expect("unlink");
                write(session, "/d/s/y", b"again").expect("write");
            },
            &["/d/s/y again"],
            &["/d/s/y base"],
        ),
    ];
    for (number, (change, added, missing)) in cases.into_iter().enumerate() {
        let mut expected: Vec<String> = WHOLE.map(String::from).to_vec();
        expected.retain(|path| !missing.contains(&path.as_str()));
        expected.extend(added.iter().map(|path| String::from(*path)));
        expected.sort();
        for removal in REMOVALS {
            for ranks in [[removal, change], [change, removal]] {
                let (tree, report, _) = job(&ranks);
                assert_eq!(tree, expected, "case {number}: {report:?}");
                assert!(!report.conflicts.is_empty(), "case {number}");
            }
        }
    }
}

#[test]
fn a_tree_in_which_others_only_removed_something_is_removed_without_a_conflict() {
    let remove_an_entry: Change = |session| {
        session.unlink(&session.namespace().dir("/d/s").expect("dir"), b"y").expect("unlink");
    };
    for removal in REMOVALS {
        for other in [remove_an_entry, remove_one_by_one, remove_at_once] {
            for ranks in [[removal, other], [other, removal]] {
                let (tree, report, _) = job(&ranks);
                // A removal of a tree at once leaves the link counts as they are.
                assert!(
                    ["/keep base", "/keep base*2"].contains(&&*tree.join(" ")),
                    "{tree:?} {report:?}"
                );
                assert_eq!(report.conflicts, []);
            }
        }
    }
}

#[test]
fn one_of_two_removals_holds_where_nothing_was_changed() {
    let remove_s: Change = |session| {
        session.remove_tree(&session.namespace().dir("/d").expect("dir"), b"s").expect("remove");
    };
    let change_x: Change = |session| chmod(session, "/d", b"x", 0o600);
    for removal in REMOVALS {
        let (tree, report, _) = job(&[removal, remove_s, change_x]);
        let without_s = ["/d", "/d/big 3145728x7", "/d/l base*2", "/d/x base", "/keep base*2"];
        assert_eq!(tree, without_s, "{report:?}");
        let found = conflicts(&report);
        assert!(found.contains(&(ConflictKind::Removed, Some("/d".into()))), "{found:?}");
    }
}

#[test]
fn a_directory_made_in_place_of_one_in_which_another_part_changed_something_is_reported() {
    let make: Change = |session| {
        session.mkdir(session.root(), b"d", 0o755).expect("mkdir");
        write(session, "/d/other", b"o").expect("write");
    };
    for removal in REMOVALS {
        let both: [Change; 2] = [removal, make];
        let (tree, report, _) = job_of(&[&both, &[change_deep_below]]);
        assert_eq!(tree[..2], ["/d", "/d/other o"]);
        let found: Vec<_> = report.conflicts.iter().filter(|found| found.path.is_some()).collect();
        assert_eq!(conflicts(&report)[0], (ConflictKind::SameName, Some("/d".into())), "{found:?}");
    }
}

#[test]
fn a_tree_in_which_another_part_changed_something_is_shown_rather_than_a_file_in_its_place() {
    for removal in REMOVALS {
        for is_first in [true, false] {
            let replace: Change = match is_first {
                true => |session| write(session, "/d", b"file").expect("write"),
                false => |session| {
                    session.symlink(session.root(), b"d", b"elsewhere").expect("symlink");
                },
            };
            let both: [Change; 2] = [removal, replace];
            let (tree, report, _) = job_of(&[&both, &[change_deep_below]]);
            assert_eq!(tree, WHOLE, "{report:?}");
            assert_eq!(conflicts(&report), [(ConflictKind::SameName, Some("/d".into()))]);
        }
    }
}

/// Symptom: the change of a file with several names was nowhere, and no conflict was reported.
/// Cause: each part counts the names that it removes; where two parts removed all of them together,
/// or one did and another changed the file, the inode was kept without a name.
#[test]
fn a_changed_file_of_which_others_removed_all_names_keeps_one() {
    let (tree, report, shown) = job(&[
        |session| chmod(session, "/", b"keep", 0o600),
        |session| {
            session.unlink(session.root(), b"keep").expect("unlink");
            session.unlink(&session.namespace().dir("/d").expect("dir"), b"l").expect("unlink");
        },
    ]);
    assert!(tree.contains(&"/keep base*2".to_owned()), "{tree:?}");
    assert_eq!(shown.stat("/keep", FollowLinks::No).expect("stat").mode & 0o777, 0o600);
    assert!(!report.conflicts.is_empty());
}

#[test]
fn a_name_in_a_directory_that_is_not_shown_is_not_counted() {
    // The file of the second part has the lower sequence number, so the directory is not shown.
    let (tree, report, _) = job(&[
        |session| {
            let made = session.mkdir(session.root(), b"h", 0o755).expect("mkdir");
            session.link(session.root(), b"keep", &made, b"again").expect("link");
        },
        |session| write(session, "/h", b"file").expect("write"),
    ]);
    let is_file = tree.contains(&"/h file".to_owned());
    let count = if is_file { 2 } else { 3 };
    assert!(tree.contains(&format!("/keep base*{count}")), "{tree:?} {report:?}");
}

/// An entry of a tree.
struct Entry {
    path: String,
    /// Its content, and the number of its names if there are several.
    content: String,
    /// What a user compares: kind, mode, content.
    meaning: String,
    /// The keys of the directories above it; of a file, also the key of its name.
    above: Vec<(DirId, Vec<u8>)>,
}

/// Returns the entries of a tree by the directory and the name in it.
fn entries(namespace: &Namespace) -> HashMap<(DirId, Vec<u8>), Entry> {
    type Waiting = (String, Dir, Vec<(DirId, Vec<u8>)>);
    let mut found = HashMap::new();
    let mut waiting: Vec<Waiting> = vec![(String::new(), namespace.root().clone(), Vec::new())];
    while let Some((parent, dir, above)) = waiting.pop() {
        let listed = namespace.read_dir(&dir, &DirCursor::default(), usize::MAX).expect("list");
        for listed in listed {
            let (inode, key) = (&listed.inode, (dir.id(), listed.name.to_vec()));
            let path = format!("{parent}/{}", String::from_utf8_lossy(&listed.name));
            let bytes = content(namespace, inode);
            let mut content = match bytes.first() {
                None => String::new(),
                Some(first) if bytes.len() > 3_000 && bytes.iter().all(|byte| byte == first) => {
                    format!(" {}x{first}", bytes.len())
                }
                _ => format!(" {}", String::from_utf8_lossy(&bytes)),
            };
            if inode.nlink > 1 && !inode.is_directory() {
                content.push_str(&format!("*{}", inode.nlink));
            }
            let mut meaning =
                format!("{:?} {:o} {:x}", inode.kind(), inode.mode, crc32c::crc32c(&bytes));
            let mut above_entries = above.clone();
            above_entries.push(key.clone());
            if inode.is_directory() {
                let child = namespace.dir(&path).expect("dir");
                waiting.push((path.clone(), child, above_entries));
            } else {
                // Parts may change the names of a file and the file independently.
                let file = (DirId::LINKS, inode.id.to_be_bytes().to_vec());
                let of_file = std::mem::replace(&mut meaning, format!("{:x}", inode.id));
                let (path, content) = (path.clone(), content.clone());
                found.insert(file, Entry { path, content, meaning: of_file, above: above_entries });
            }
            found.insert(key, Entry { path, content, meaning, above: above.clone() });
        }
    }
    found
}

/// Returns the bytes of a file; none of anything else.
fn content(namespace: &Namespace, inode: &Inode) -> Vec<u8> {
    let mut bytes = Vec::new();
    if inode.kind() == Some(FileKind::File) {
        let mut take = |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        namespace.read_all(inode, &mut take).expect("read");
    }
    bytes
}

/// True if contents are the same, apart from numbers of names.
fn same_content(a: &str, b: &str) -> bool {
    let of_file = |content: &str| {
        content.rsplit_once('*').map_or(content.to_owned(), |(of, _)| of.to_owned())
    };
    of_file(a) == of_file(b)
}

/// Fails unless each change of `part`, whose tree is `own`, is shown or reported.
fn check_changes(
    (seed, part): (u64, SetId),
    [base, joined]: [&HashMap<(DirId, Vec<u8>), Entry>; 2],
    views: &[HashMap<(DirId, Vec<u8>), Entry>],
    own: &HashMap<(DirId, Vec<u8>), Entry>,
    report: &JobReport,
) {
    let is_reported = |key: &(DirId, Vec<u8>), above: &[(DirId, Vec<u8>)]| {
        report.conflicts.iter().any(|conflict| {
            let is_at = |key: &(DirId, Vec<u8>)| conflict.dir == key.0 && conflict.name == key.1;
            conflict.kind == ConflictKind::Unreachable || is_at(key) || above.iter().any(is_at)
        })
    };
    for (key, entry) in own {
        let is_changed = base.get(key).is_none_or(|before| before.meaning != entry.meaning);
        let is_shown = joined.get(key).is_some_and(|shown| shown.meaning == entry.meaning);
        let meanings = [base, own, joined].map(|tree| tree.get(key).map(|found| &found.meaning));
        // Where a part moved the file, another may have something else.
        let names = views.iter().filter_map(|view| view.get(key));
        let is_reported = || names.clone().any(|entry| is_reported(key, &entry.above));
        assert!(
            !is_changed || is_shown || is_reported(),
            "seed {seed}: {} {meanings:?} of @{part} is neither shown nor reported: {report:#?}",
            entry.path
        );
    }
    for (key, entry) in
        base.iter().filter(|(key, _)| key.0 != DirId::LINKS && !own.contains_key(*key))
    {
        let is_kept = joined.get(key).is_some_and(|shown| shown.meaning == entry.meaning);
        assert!(
            !is_kept || is_reported(key, &entry.above),
            "seed {seed}: that @{part} removed {} is neither shown nor reported: {report:#?}",
            entry.path
        );
    }
}

#[test]
fn every_change_of_random_parts_is_shown_or_reported() {
    for seed in 0..400 {
        let repository = repository(&(Arc::new(MemoryStore::new()) as _));
        let mut random = Random::from_seed(seed);
        let below = crate::squash::stack(&repository, &mut random, 2, 40);
        let mut parts = Vec::new();
        for rank in 0..2 + (seed % 2) as u32 {
            let session =
                repository.begin_part(JobId(1), rank, &[below], options()).expect("begin");
            for _ in 0..1 + random.below(20) {
                let _ = crate::squash::change(&session, &mut random);
            }
            parts.push(session.complete().expect("complete"));
        }
        let report = repository.publish_job(&parts, "job").expect("publish");
        let checked = repository.verify(&VerifyOptions::default()).expect("verify");
        assert!(checked.is_sound(), "seed {seed}: {:#?} {report:#?}", checked.findings);
        let open = |set| entries(&repository.open(&[set], Identity::root()).expect("open"));
        let (base, joined) = (open(below), open(report.set));
        let views: Vec<_> = parts.iter().map(|part| open(*part)).collect();
        let known: HashSet<&String> = views
            .iter()
            .chain([&base])
            .flat_map(HashMap::values)
            .map(|entry| &entry.content)
            .collect();
        for entry in joined.values() {
            let is_known = known.iter().any(|content| same_content(content, &entry.content));
            assert!(is_known, "seed {seed}: nobody has the content of {}", entry.path);
        }
        for (part, own) in parts.into_iter().zip(&views) {
            check_changes((seed, part), [&base, &joined], &views, own, &report);
        }
    }
}

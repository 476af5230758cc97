// SPDX-License-Identifier: Apache-2.0
//! Compositions: stacks of sets that changed one file of a common base independently, sessions
//! above them, and squashes of them.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::file::OpenFile;
use esker_fs::inode::Inode;
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::diff::diff;
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::tally::TransferTally;
use esker_fs::traversal::usage::TreeUsage;
use esker_fs::traversal::walk::{VisitedEntry, WalkNext, WalkOrder, WalkStep};
use esker_table::manifest::SetId;

use crate::gc::{eager, options};
use crate::verify::assert_sound;

/// Long enough for the extent table.
const FILE_BYTES: usize = 2 << 20;

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

fn begin(repository: &Repository, bases: &[SetId]) -> Session {
    repository.begin(bases, options()).expect("begin")
}

/// Returns a set that `change` makes over `bases`, published.
fn set(repository: &Repository, bases: &[SetId], change: impl FnOnce(&Session)) -> SetId {
    let session = begin(repository, bases);
    change(&session);
    session.publish(&session.set().to_string()).expect("publish")
}

/// Returns a set with the file `/f` of sevens.
fn base(repository: &Repository) -> SetId {
    set(repository, &[], |session| {
        let file = session.create_file(session.root(), b"f", 0o644).expect("create");
        session.file(&file).write(0, &[7; FILE_BYTES]).expect("write");
        session.close_file(file).expect("close");
    })
}

fn rename(session: &Session, from: &[u8], to: &[u8]) {
    let root = session.root();
    session.rename((root, from), (root, to), RenameFlags::Replace).expect("rename");
}

fn link(session: &Session, from: &[u8], to: &[u8]) {
    session.link(session.root(), from, session.root(), to).expect("link");
}

fn chmod(session: &Session, name: &[u8]) {
    let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    session.setattr(session.root(), name, &changes).expect("chmod");
}

fn truncate(session: &Session, name: &[u8], size: u64) {
    let file = session.open_file(session.root(), name).expect("open");
    session.file(&file).truncate(size).expect("truncate");
    session.close_file(file).expect("close");
}

fn overwrite(session: &Session, name: &[u8], offset: u64, bytes: &[u8]) {
    let file = session.open_file(session.root(), name).expect("open");
    session.file(&file).write(offset, bytes).expect("write");
    session.close_file(file).expect("close");
}

fn stat(namespace: &Namespace, path: &str) -> Inode {
    namespace.stat(path, FollowLinks::No).expect(path)
}

fn content(namespace: &Namespace, path: &str) -> Vec<u8> {
    let mut content = Vec::new();
    let take = &mut |bytes: &[u8]| {
        content.extend_from_slice(bytes);
        Ok(())
    };
    namespace.read_all(&stat(namespace, path), take).expect(path);
    content
}

fn assert_sevens(namespace: &Namespace, path: &str) {
    assert!(content(namespace, path) == [7; FILE_BYTES], "{path} is as the base has it");
}

fn open(repository: &Repository, sets: &[SetId]) -> Namespace {
    repository.open(sets, Identity::root()).expect("open")
}

fn squash(repository: &Repository, sets: &[SetId]) -> SetId {
    let (squashed, _) = repository.squash(sets, &SquashOptions::default()).expect("squash");
    repository.publish(squashed, &squashed.to_string()).expect("publish");
    squashed
}

/// Symptom: removing one of two names under which a stack showed one file of a common base made the
/// other read as zeros.
/// Cause: both names had one identity, and the last name of an identity that is not a link takes
/// the content along.
/// Fix: a branch's file has an identity of its own (`lineage.rs`).
#[test]
fn a_name_that_a_branch_gave_survives_the_removal_of_the_other() {
    let repository = repository();
    let base = base(&repository);
    let moved = set(&repository, &[base], |session| rename(session, b"f", b"h"));
    let changed = set(&repository, &[base], |session| chmod(session, b"f"));
    let session = begin(&repository, &[changed, moved]);
    assert_ne!(stat(session.namespace(), "/f").id, stat(session.namespace(), "/h").id);
    let listed =
        session.namespace().read_dir(session.root(), &Default::default(), 9).expect("list");
    for entry in &listed {
        let path = format!("/{}", String::from_utf8_lossy(&entry.name));
        assert_eq!(
            entry.inode,
            stat(session.namespace(), &path),
            "a listing says what a look-up says"
        );
    }
    let open_file = session.open_file(session.root(), b"f").expect("open");
    session.unlink(session.root(), b"f").expect("unlink");
    assert_sevens(session.namespace(), "/h");
    assert_eq!(session.file(&open_file).read(9, 2).expect("read"), &[7, 7][..]);
    session.close_file(open_file).expect("close");
    chmod(&session, b"h");
    assert_sevens(session.namespace(), "/h");
    session.flush().expect("flush");
    session.compact().expect("compact");
    assert_sevens(session.namespace(), "/h");
    let above = session.publish("above").expect("publish");
    repository.gc(&eager()).expect("gc");
    assert_sevens(&open(&repository, &[above]), "/h");
    assert_sevens(&open(&repository, &[squash(&repository, &[above])]), "/h");
    assert_sound(&repository);
}

/// Symptom: where one set had truncated a file and another had renamed it, a stack of both showed
/// the renamed file with zeros beyond the cut; squash truncated it as well if the sizes differed.
/// Cause: segments of all layers were overlaid by the file's identity alone.
/// Fix: a file is shown as of the branch that has its record.
#[test]
fn a_branch_does_not_cut_what_another_branch_shows() {
    for other in [&b"h"[..], b"i", b"j", b"k"] {
        let repository = repository();
        let base = base(&repository);
        let moved = set(&repository, &[base], |session| rename(session, b"f", other));
        let cut = set(&repository, &[base], |session| truncate(session, b"f", 1_000));
        let longer = set(&repository, &[base], |session| {
            overwrite(session, b"f", FILE_BYTES as u64, &[9; 1 << 20]);
        });
        let path = format!("/{}", String::from_utf8_lossy(other));
        for (changed, bytes) in [(cut, vec![7; 1_000]), (longer, [[7; 1 << 20]; 2].concat())] {
            let stack = open(&repository, &[changed, moved]);
            let squashed = squash(&repository, &[changed, moved]);
            let half = squash(&repository, &[moved]);
            for shown in
                [&stack, &open(&repository, &[squashed]), &open(&repository, &[changed, half])]
            {
                assert_sevens(shown, &path);
                let f = content(shown, "/f");
                assert!(f[..bytes.len()] == bytes && f.len() == stat(&stack, "/f").size as usize);
            }
        }
        assert_sound(&repository);
    }
}

/// Writes of a session to a file of a branch affect only that file, and survive with it.
#[test]
fn a_file_of_a_branch_is_copied_up_once() {
    let repository = repository();
    let base = base(&repository);
    let moved = set(&repository, &[base], |session| rename(session, b"f", b"h"));
    let changed = set(&repository, &[base], |session| chmod(session, b"f"));
    let session = begin(&repository, &[changed, moved]);
    let before = stat(session.namespace(), "/h").id;
    let file = session.open_file(session.root(), b"h").expect("open");
    session.file(&file).write(10, b"first").expect("write");
    chmod(&session, b"h");
    session.file(&file).write(20, b"second").expect("write");
    session.close_file(file).expect("close");
    rename(&session, b"h", b"k");
    link(&session, b"k", b"l");
    overwrite(&session, b"l", 30, b"third");
    let mut expected = vec![7; FILE_BYTES];
    for (at, text) in [(10, &b"first"[..]), (20, b"second"), (30, b"third")] {
        expected[at..at + text.len()].copy_from_slice(text);
    }
    let check = |namespace: &Namespace| {
        assert!(content(namespace, "/k") == expected && content(namespace, "/l") == expected);
        assert_sevens(namespace, "/f");
        assert_eq!(stat(namespace, "/k").nlink, 2);
    };
    check(session.namespace());
    assert_eq!(
        stat(session.namespace(), "/k").id,
        before,
        "a file keeps its identity in a session"
    );
    session.sync().expect("sync");
    let set = session.set();
    drop(session);
    let session = repository.resume(set, options()).expect("resume");
    check(session.namespace());
    chmod(&session, b"k");
    check(session.namespace());
    let copy = session.create_file(session.root(), b"copy", 0o644).expect("create");
    let from = session.open_file(session.root(), b"f").expect("open");
    let all = 0..FILE_BYTES as u64;
    assert_eq!(session.file(&from).copy_range(all, &copy, 0).expect("copy"), FILE_BYTES as u64);
    session.close_file(from).expect("close");
    session.close_file(copy).expect("close");
    assert_sevens(session.namespace(), "/copy");
    let above = session.publish("above").expect("publish");
    check(&open(&repository, &[above]));
    check(&open(&repository, &[squash(&repository, &[above])]));
    assert_sound(&repository);
}

/// Symptom: writes to a file from a branch were lost, and its old content was back, if it had been
/// truncated to 0 before; `esker cp` over such a file did that.
/// Cause: replacing all content needs no copy of the branch's, and none was recorded; so the first
/// record, which comes after the content, copied the branch's content up over it.
/// Fix: a file whose content is replaced counts as copied up.
#[test]
fn nothing_is_copied_up_over_content_that_is_all_new() {
    let repository = repository();
    let base = base(&repository);
    let lower = set(&repository, &[base], |session| chmod(session, b"f"));
    let upper = set(&repository, &[base], |session| {
        let file = session.create_file(session.root(), b"g", 0o644).expect("create");
        session.file(&file).write(0, &[8; FILE_BYTES]).expect("write");
        session.close_file(file).expect("close");
    });
    type Change<'a> = &'a dyn Fn(&Session, &Arc<OpenFile>);
    let change: [Change; 2] = [
        &|session, file| session.file(file).write(0, &[8; FILE_BYTES]).expect("write"),
        &|session, file| {
            let from = session.open_file(session.root(), b"g").expect("open");
            session.file(&from).copy_range(0..FILE_BYTES as u64, file, 0).expect("copy");
            session.close_file(from).expect("close");
        },
    ];
    for change in change {
        let session = begin(&repository, &[upper, lower]);
        let file = session.open_file(session.root(), b"f").expect("open");
        session.file(&file).truncate(0).expect("truncate");
        change(&session, &file);
        // The first record, while the file is open.
        rename(&session, b"f", b"h");
        session.file(&file).write(0, b"new").expect("write");
        session.close_file(file).expect("close");
        let mut expected = vec![8; FILE_BYTES];
        expected[..3].copy_from_slice(b"new");
        assert!(content(session.namespace(), "/h") == expected);
        let set = session.publish(&session.set().to_string()).expect("publish");
        assert!(content(&open(&repository, &[set]), "/h") == expected);
    }
    assert_sound(&repository);
}

/// Symptom: a file to which two sets had each given a name had three names and two links in a stack
/// of both; when two of the names were removed the third read as zeros, and squash kept the wrong
/// count.
/// Cause: each set counts only the names that it knows.
/// Fix: in a stack with branches an inherited count never falls to zero, and squash counts the
/// names.
#[test]
fn names_of_two_branches_do_not_end_with_the_count_of_one() {
    for is_squashed in [false, true] {
        let repository = repository();
        let base = base(&repository);
        let named = |name: &[u8]| set(&repository, &[base], |session| link(session, b"f", name));
        let mut sets = vec![named(b"g"), named(b"h")];
        if is_squashed {
            sets = vec![squash(&repository, &sets)];
            assert_eq!(stat(&open(&repository, &sets), "/h").nlink, 3);
        }
        let above = set(&repository, &sets, |session| {
            session.unlink(session.root(), b"f").expect("unlink");
            session.unlink(session.root(), b"g").expect("unlink");
            assert_eq!(stat(session.namespace(), "/h").nlink, 1);
            assert_sevens(session.namespace(), "/h");
        });
        assert_sevens(&open(&repository, &[above]), "/h");
        let squashed = squash(&repository, &[above]);
        assert_sevens(&open(&repository, &[squashed]), "/h");
        assert_eq!(stat(&open(&repository, &[squashed]), "/h").nlink, 1);
        assert_sound(&repository);
    }
}

/// Symptom: a file with two names and a link count of one, which a stack of branches can show, was
/// exported as two files, and counted twice by `du`.
/// Cause: only files of a higher count were taken for files with several names.
/// Fix: the record of a name says whether there may be others.
#[test]
fn a_file_with_a_count_that_is_too_low_is_exported_once() {
    let repository = repository();
    let base = base(&repository);
    let linked = set(&repository, &[base], |session| link(session, b"f", b"g"));
    let fewer = set(&repository, &[linked], |session| {
        session.unlink(session.root(), b"g").expect("unlink");
    });
    let more = set(&repository, &[linked], |session| link(session, b"f", b"h"));
    let namespace = open(&repository, &[fewer, more]);
    let counts = ["/f", "/h"].map(|path| stat(&namespace, path).nlink);
    assert_eq!(counts, [1, 1], "this stack has no count that is too low any more");

    let target = tempfile::tempdir().expect("a directory");
    let target = target.path().join("out");
    let tally = TransferTally::default();
    namespace.export(b"/", &target, &ExportOptions::default(), &tally).expect("export");
    let numbers = ["f", "h"]
        .map(|name| std::fs::metadata(target.join(name)).expect("an exported file").ino());
    assert_eq!(numbers[0], numbers[1]);

    let mut bytes = 0;
    let mut show = |visit: &VisitedEntry, usage: TreeUsage| {
        bytes = if visit.depth == 0 { usage.bytes } else { bytes };
        Ok(())
    };
    namespace.usage(b"/", &mut show, &mut |_, error| panic!("{error}")).expect("usage");
    assert_eq!(bytes, FILE_BYTES as u64);
}

/// Symptom: a file of which one set removed all names, and to which another gave one more, read as
/// zeros in a stack of both.
/// Cause: the first set gave up the content with the last name that it knew.
/// Fix: a session gives up the content only of files that it made itself.
#[test]
fn a_name_given_by_one_branch_has_its_content_after_another_removed_all() {
    let repository = repository();
    let base = base(&repository);
    let linked = set(&repository, &[base], |session| link(session, b"f", b"g"));
    let without = set(&repository, &[linked], |session| {
        session.unlink(session.root(), b"f").expect("unlink");
        session.unlink(session.root(), b"g").expect("unlink");
    });
    let with = set(&repository, &[linked], |session| link(session, b"f", b"h"));
    let stack = [without, with];
    assert_sevens(&open(&repository, &stack), "/h");
    assert_sevens(&open(&repository, &[squash(&repository, &stack)]), "/h");
    assert_sound(&repository);
}

/// Symptom: a directory made above a squashed set had the identity, and showed the entries, of one
/// that had been moved away from the same name long before.
/// Cause: squash dropped the tombstones of directories to which no path led, and with them the
/// generations of their names; another set of the stack had such a directory at another name.
/// Fix: a generation stays while a directory exists that the name could make again.
#[test]
fn a_new_directory_above_a_squashed_set_is_empty() {
    let repository = repository();
    let base = set(&repository, &[], |session| {
        session.mkdir(session.root(), b"d", 0o755).expect("mkdir");
    });
    let emptied = set(&repository, &[base], |session| {
        let d = session.namespace().dir("/d").expect("dir");
        let x = session.mkdir(&d, b"x", 0o755).expect("mkdir");
        session.create(&x, b"entry", 0o644).expect("create");
        let moved = session.rename((&d, b"x"), (session.root(), b"y"), RenameFlags::Replace);
        moved.expect("rename");
        session.rmdir(session.root(), b"d").expect("rmdir");
    });
    let kept = set(&repository, &[base], |session| rename(session, b"d", b"z"));
    for below in [emptied, squash(&repository, &[emptied])] {
        let session = begin(&repository, &[below, kept]);
        let z = session.namespace().dir("/z").expect("dir");
        let x = session.mkdir(&z, b"x", 0o755).expect("mkdir");
        let entries = session.namespace().read_dir(&x, &Default::default(), 9).expect("list");
        assert!(entries.is_empty(), "{entries:?}");
        session.namespace().stat("/y/entry", FollowLinks::No).expect("the old one has its entry");
    }
}

/// Symptom: `find`, `du`, `diff` and `export` of a stack in which two sets had moved directories
/// into each other never ended, or only at the longest path that the file system takes.
/// Cause: walks did not track where they were.
/// Fix: they do not enter a directory again that they are in, and report it.
#[test]
fn walks_of_a_loop_of_directories_end() {
    let repository = repository();
    let base = set(&repository, &[], |session| {
        session.mkdir(session.root(), b"a", 0o755).expect("mkdir");
        session.mkdir(session.root(), b"b", 0o755).expect("mkdir");
    });
    let moved = |name: &[u8], into: &str| {
        set(&repository, &[base], |session| {
            let into = session.namespace().dir(into).expect("dir");
            let moved = session.rename((session.root(), name), (&into, name), RenameFlags::Replace);
            moved.expect("rename");
        })
    };
    let stack = open(&repository, &[moved(b"a", "/b"), moved(b"b", "/a")]);
    for order in [WalkOrder::Stored, WalkOrder::Name] {
        let (mut entered, mut left, mut loops) = (Vec::new(), Vec::new(), Vec::new());
        let walked = stack.traverse(b"/", FollowLinks::No, order, &mut |step| {
            match step {
                WalkStep::Entry(visit) => entered.push(visit.path.to_vec()),
                WalkStep::Left(visit) => left.push(visit.path.to_vec()),
                WalkStep::Unreadable(visit, error) => {
                    assert_eq!(error.kind(), Kind::Loop);
                    loops.push(visit.path.to_vec());
                }
            }
            Ok(WalkNext::Into)
        });
        walked.expect("walk");
        assert_eq!(loops, [b"/b/a/b".to_vec()]);
        left.sort_unstable();
        entered.sort_unstable();
        assert_eq!(entered, left, "every directory is left once");
    }
    let mut problems = 0;
    let usage = stack.usage(b"/", &mut |_, _| Ok(()), &mut |_, _| problems += 1);
    usage.expect("usage");
    assert_eq!(problems, 1);
    let empty = open(&repository, &[]);
    let mut paths = Vec::new();
    let compared = diff((&empty, b"/"), (&stack, b"/"), &mut |difference| {
        paths.push(difference.path.to_vec());
        Ok(())
    });
    assert_eq!(compared.expect_err("a loop").kind(), Kind::Loop);
    assert_eq!(paths.len(), 3);
}

// SPDX-License-Identifier: Apache-2.0
//! Joins of parts that removed, moved or changed the same.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_fs::job::{ConflictKind, JobId};
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::{Manifest, SetId};

use crate::gc::{eager, later, options, repository};
use crate::interrupted_store::Interrupted;
use crate::join_program::{Joined, base, check, conflicts, join, lines, open, parts, run};
use crate::verify::assert_sound;

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
    lines(session.namespace())
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

/// Symptom: a write to a large file of a base was lost without a conflict if another part rewrote or
/// truncated the file.
/// Cause: such a write changes segments only, and the winner's file had none.
/// Fix: parts with segments are asked for if any part's file has them.
#[test]
fn a_write_loses_against_a_rewrite_only_with_a_conflict() {
    for base in ["big /f", "seg /f", "seg /f; ln /f /g"] {
        for other in ["rewrite /f new", "cut /f 0", "cut /f 0; put /f 0 10 50"] {
            for ranks in [["put /f 256 3771 30", other], [other, "put /f 256 3771 30"]] {
                let Joined { lines, parts, .. } = join(base, &ranks);
                let winner = parts.iter().position(|part| *part == lines);
                let winner = winner.unwrap_or_else(|| panic!("{base} | {ranks:?}: {lines:?}"));
                let found = conflicts(base, &ranks);
                let end = format!(" SameFile {winner} [{}]", 1 - winner);
                assert!(found.len() == 1 && found[0].ends_with(&end), "{ranks:?}: {found:?}");
            }
        }
        let ranks = ["chmod /f 600", "put /f 0 10 1", "rewrite /f new"];
        let found = conflicts(base, &ranks);
        assert!(found[0].contains("2") && found[0].contains("1"), "{base}: {found:?}");
    }
}

/// Symptom: content that a part had removed with all names of its file was shown in another part's
/// name of the file.
/// Cause: the file's record, with no names left, counted as a change.
/// Fix: it is withdrawn if another part has the file.
#[test]
fn what_a_part_removed_with_all_names_of_a_file_is_not_shown() {
    check(&[
        (
            "make /b text; ln /b /c; rm /b",
            &["rewrite /c AAAA; rm /c", "mv /c /a"],
            &["/a text"],
            &["/c"],
        ),
        (
            "make /a text; ln /a /b; make /n new",
            &["rewrite /a EVIL; mv /n /a; rm /b", "mv /b /c"],
            &["/a new", "/c text"],
            &["/b"],
        ),
        (
            "make /b text; ln /b /c; rm /b",
            &["rewrite /c AAAA; rm /c", "make /o o; rewrite /c BBBB"],
            &["/c BBBB"],
            &[],
        ),
        (
            "mkdir /a; seg /a/b; ln /a/b /a/d",
            &["put /a/d 495 55 39", "rm /a/b; rewrite /a/d r44r; rm /a/d"],
            &["/a/b 495x7+55x39+9450x7", "/a/d 495x7+55x39+9450x7"],
            &[],
        ),
        // The base counts a name too many.
        (
            "seg /f; mkdir /d; ln /f /d/g; rmr /d",
            &["rewrite /f EVIL; rm /f", "put /f 0 10 1"],
            &["/f 10x1+9990x7"],
            &[],
        ),
        (
            "make /c text",
            &["ln /c /d; rewrite /c EVIL; rm /c; rm /d", "make /o o; ln /c /e"],
            &["/e text"],
            &["/d"],
        ),
        (
            "make /a text; ln /a /b",
            &["rewrite /a EVIL; rm /a; rm /b", "chmod /a 600"],
            &["/a text 600"],
            &[],
        ),
        (
            "make /a text; ln /a /b",
            &["rewrite /a EVIL; rm /a; rm /b", "make /o o"],
            &["/o"],
            &["/a", "/b"],
        ),
    ]);
}

/// Checks that one of the two `paths` is shown, and that the part that lost still shows the other,
/// also after a collection.
fn assert_shown_by_loser(program: &str, ranks: &[&str], paths: [&str; 2]) {
    let Joined { repository, report, .. } = join(program, ranks);
    repository.gc(&eager()).expect("gc");
    let [conflict] = &report.conflicts[..] else { panic!("{report:?}") };
    let shows = |set: SetId| {
        let shown = repository.open(&[set], Identity::root()).expect("open");
        paths.map(|path| shown.find(path, FollowLinks::No).is_ok())
    };
    let [joined, lost] = [report.set, conflict.losers[0]].map(shows);
    assert_eq!(joined.map(|is_shown| !is_shown), lost);
    assert_ne!(joined[0], joined[1]);
}

/// Symptom: a conflict named a part whose change was not shown as the one that is.
/// Cause: a later conflict of the same name replaced the winner.
/// Fix: only a later decision does.
#[test]
fn conflicts_name_the_part_that_is_shown() {
    // The other directory is at no path.
    let ranks = ["make /o o; mv /a /b; make /b/new new", "mv /d /b"];
    let program = "mkdir /a; make /a/f precious; mkdir /d; make /d/g other";
    let Joined { lines, .. } = join(program, &ranks);
    let winner = usize::from(lines.iter().any(|line| line.starts_with("/b/g")));
    let expected = format!("/b SameName {winner} [{}]", 1 - winner);
    assert_eq!(conflicts(program, &ranks), [expected]);
    assert_shown_by_loser(program, &ranks, ["/b/f", "/b/g"]);
    // The name that a file with several lost.
    let found = conflicts("make /d t", &["seg /c", "make /c other", "ln /d /c; rm /d"]);
    let lines = join("make /d t", &["seg /c", "make /c other", "ln /d /c; rm /d"]).lines;
    let winner = usize::from(lines.contains(&"/c other 644".into()));
    let start = format!("/c SameName {winner} [");
    assert!(found.iter().any(|line| line.starts_with(&start)), "{found:?} {lines:?}");
    assert!(found.iter().any(|line| line.contains(&(1 - winner).to_string())), "{found:?}");
}

/// Symptom: with a third part that removed something at its name, a file was shown and not the
/// directory.
/// Cause: the rule for removals took the first change.
/// Fix: it applies only if something of the bases was removed, and chooses like the others.
#[test]
fn the_directory_is_shown_also_if_a_part_removed_something() {
    check(&[
        (
            "make /a t; mkdir /b; make /b/f precious",
            &["rm /a", "make /o o; rm /a; mv /b /a; make /a/new n", "make /x x; rewrite /a r"],
            &["/a/f precious", "/a/new n"],
            &["/a r"],
        ),
        (
            "",
            &["make /c t; rm /c", "make /o o; mkdir /c; make /c/new n", "make /c file"],
            &["/c/new n"],
            &[],
        ),
    ]);
    assert_eq!(conflicts("", &["make /lock 1; rm /lock", "make /lock 2"]), [""; 0]);
}

#[test]
fn link_counts_are_exact_after_one_removal_by_several() {
    for removers in 2..5 {
        let Joined { repository, report, .. } =
            join("make /a t; ln /a /c", &vec!["rm /a"; removers]);
        let joined = repository.open(&[report.set], Identity::root()).expect("open");
        let found = joined.find("/c", FollowLinks::No).expect("find");
        assert_eq!(found.inode.nlink, 1, "{removers}");
    }
}

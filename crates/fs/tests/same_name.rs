// SPDX-License-Identifier: Apache-2.0
//! Jobs whose parts made different files and directories at one name.

use esker_fs::job::ConflictKind;
use esker_fs::ops::RenameFlags;
use esker_fs::session::Session;

use crate::gc::{options, write};
use crate::job::{base, exists, job, memory, read};

#[test]
fn of_a_directory_and_a_file_of_one_name_the_directory_is_shown() {
    let ranks: [fn(&Session); 2] = [
        |session| write(session, "/n", b"file").expect("write"),
        |session| {
            let root = session.root().clone();
            session.mkdir(&root, b"n", 0o755).expect("mkdir");
            write(session, "/n/kept", b"text").expect("write");
        },
    ];
    for ranks in [ranks, [ranks[1], ranks[0]]] {
        let (_, repository) = memory();
        let (namespace, report) = job(&repository, &[], &ranks);
        assert_eq!(report.conflicts[0].kind, ConflictKind::SameName);
        assert_eq!(read(&namespace, "/n/kept"), b"text");
    }
}

#[test]
fn a_directory_made_later_does_not_show_the_entries_of_one_that_was_not_shown() {
    let (_, repository) = memory();
    let base = base(&repository);
    let (namespace, report) = job(
        &repository,
        &[base],
        &[
            |session| {
                let root = session.root().clone();
                let to = (&root, &b"n"[..]);
                session.rename((&root, b"e"), to, RenameFlags::Replace).expect("rename");
            },
            |session| {
                let root = session.root().clone();
                session.mkdir(&root, b"n", 0o755).expect("mkdir");
                write(session, "/n/lost", b"text").expect("write");
            },
        ],
    );
    assert_eq!(report.conflicts[0].kind, ConflictKind::SameName);
    assert!(exists(&namespace, "/n") && !exists(&namespace, "/n/lost"));
    let session = repository.begin(&[report.set], options()).expect("begin");
    let root = session.root().clone();
    session.rmdir(&root, b"n").expect("rmdir");
    session.mkdir(&root, b"n", 0o755).expect("mkdir");
    assert!(!exists(&session, "/n/lost"));
}

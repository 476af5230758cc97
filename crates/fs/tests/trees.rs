// SPDX-License-Identifier: Apache-2.0
//! Whole trees: walks, sums, comparisons, and reads of running sessions.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::diff::{DiffAspect, diff};
use esker_fs::traversal::walk::{WalkNext, WalkOrder, WalkStep};
use esker_table::manifest::SetId;

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

fn begin(repository: &Repository, bases: &[SetId]) -> Session {
    let options = SessionOptions { identity: Identity::root(), ..Default::default() };
    repository.begin(bases, options).expect("begin")
}

fn write(session: &Session, dir: &Dir, name: &[u8], text: &[u8]) {
    let mut rest = text;
    session
        .create_with(dir, name, 0o644, &mut |buffer| {
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            Ok(count)
        })
        .expect("write");
}

/// Returns the paths in the order of a walk; those of unreadable directories with a `!`.
fn paths(namespace: &Namespace, start: &str, order: WalkOrder) -> Vec<String> {
    let mut paths = Vec::new();
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).expect("UTF-8");
    namespace
        .traverse(start.as_bytes(), FollowLinks::No, order, &mut |step| {
            match step {
                WalkStep::Entry(visit) => {
                    assert_eq!(visit.path.rsplit(|byte| *byte == b'/').next(), Some(visit.name()));
                    paths.push(text(visit.path));
                }
                WalkStep::Left(_) => {}
                WalkStep::Unreadable(visit, error) => {
                    assert_eq!(error.kind(), Kind::Denied);
                    paths.push(format!("{}!", text(visit.path)));
                }
            }
            Ok(WalkNext::Into)
        })
        .expect("walk");
    paths
}

#[test]
fn a_walk_comes_to_everything_once() {
    let repository = repository();
    let session = begin(&repository, &[]);
    let root = session.root().clone();
    let many = session.mkdir(&root, b"many", 0o755).expect("mkdir");
    for number in 0..3_000 {
        session.create(&many, format!("{number}").as_bytes(), 0o644).expect("create");
    }
    let deep = session.mkdir(&root, b"deep", 0o755).expect("mkdir");
    let deeper = session.mkdir(&deep, b"er", 0o755).expect("mkdir");
    session.create(&deeper, b"f", 0o644).expect("create");
    let mut stored = paths(session.namespace(), "/", WalkOrder::Stored);
    assert_eq!(stored.len(), 3_005);
    let named = paths(session.namespace(), "/", WalkOrder::Name);
    assert_eq!(named[..5], ["/", "/deep", "/deep/er", "/deep/er/f", "/many"]);
    stored.sort();
    let mut sorted = named.clone();
    sorted.sort();
    assert_eq!(stored, sorted);
    assert_eq!(
        paths(session.namespace(), "//deep/./er/", WalkOrder::Name),
        ["/deep/er", "/deep/er/f"]
    );
}

#[test]
fn a_walk_shows_nothing_of_what_mode_bits_deny() {
    let repository = repository();
    let session = begin(&repository, &[]);
    let root = session.root().clone();
    for (name, mode) in [("listable", 0o744), ("open", 0o755), ("searchable", 0o711)] {
        let dir = session.mkdir(&root, name.as_bytes(), mode).expect("mkdir");
        session.create(&dir, b"f", 0o644).expect("create");
    }
    let set = session.publish("locked").expect("publish");
    let somebody = Identity { uid: 1_000, gid: 1_000, groups: Vec::new() };
    let namespace = repository.open(&[set], somebody).expect("open");
    assert_eq!(
        paths(&namespace, "/", WalkOrder::Name),
        ["/", "/listable", "/listable!", "/open", "/open/f", "/searchable", "/searchable!"]
    );
}

#[test]
fn usage_counts_a_file_once() {
    let repository = repository();
    let session = begin(&repository, &[]);
    let root = session.root().clone();
    let dir = session.mkdir(&root, b"d", 0o755).expect("mkdir");
    write(&session, &dir, b"a", &[1; 1_000]);
    session.link(&dir, b"a", &dir, b"b").expect("link");
    session.link(&dir, b"a", &root, b"z").expect("link");
    write(&session, &root, b"e", &[1; 10]);
    let mut sums = Vec::new();
    session
        .namespace()
        .usage(
            b"/",
            &mut |visit, usage| {
                if visit.inode.is_directory() {
                    sums.push((visit.path.to_vec(), usage.bytes, usage.entries));
                }
                Ok(())
            },
            &mut |_, error| panic!("{error}"),
        )
        .expect("usage");
    assert_eq!(sums, [(b"/d".to_vec(), 1_000, 3), (b"/".to_vec(), 1_010, 6)]);
}

#[test]
fn differences_name_what_differs() {
    let repository = repository();
    let session = begin(&repository, &[]);
    let root = session.root().clone();
    write(&session, &root, b"content", b"one");
    write(&session, &root, b"same", &[3; 5_000]);
    session.mkdir(&root, b"kind", 0o755).expect("mkdir");
    session.create(&root, b"mode", 0o644).expect("create");
    let old = session.publish("old").expect("publish");
    let session = begin(&repository, &[old]);
    let root = session.root().clone();
    session.unlink(&root, b"content").expect("unlink");
    write(&session, &root, b"content", b"two");
    session.rmdir(&root, b"kind").expect("rmdir");
    session.symlink(&root, b"kind", b"mode").expect("symlink");
    session.unlink(&root, b"mode").expect("unlink");
    session.create(&root, b"mode", 0o600).expect("create");
    let dir = session.mkdir(&root, b"new", 0o755).expect("mkdir");
    session.create(&dir, b"below", 0o644).expect("create");
    let new = session.publish("new").expect("publish");
    let open = |set| repository.open(&[set], Identity::root()).expect("open");
    let (old, new) = (open(old), open(new));
    let mut found = Vec::new();
    diff((&old, b"/"), (&new, b"/"), &mut |difference| {
        let aspects = difference.aspects.iter().filter(|a| **a != DiffAspect::Time).copied();
        found.push((difference.path.to_vec(), aspects.collect::<Vec<_>>()));
        Ok(())
    })
    .expect("diff");
    let expected: [(&[u8], &[DiffAspect]); 5] = [
        (b"/content", &[DiffAspect::Content]),
        (b"/kind", &[DiffAspect::Kind, DiffAspect::Mode]),
        (b"/mode", &[DiffAspect::Mode]),
        (b"/new", &[]),
        (b"/new/below", &[]),
    ];
    assert_eq!(found, expected.map(|(path, aspects)| (path.to_vec(), aspects.to_vec())));
    diff((&new, b"/new"), (&new, b"/new"), &mut |_| panic!("nothing differs")).expect("diff");
}

#[test]
fn a_glimpse_shows_the_last_flush_and_disturbs_nobody() {
    let repository = repository();
    let session = begin(&repository, &[]);
    let root = session.root().clone();
    session.create(&root, b"flushed", 0o644).expect("create");
    session.flush().expect("flush");
    session.create(&root, b"later", 0o644).expect("create");
    let glimpse = repository.open_unsealed(session.set(), Identity::root()).expect("glimpse");
    assert_eq!(paths(&glimpse, "/", WalkOrder::Name), ["/", "/flushed"]);
    session.flush().expect("nobody took the session over");
    let glimpse = repository.open_unsealed(session.set(), Identity::root()).expect("glimpse");
    assert_eq!(paths(&glimpse, "/", WalkOrder::Name), ["/", "/flushed", "/later"]);
    assert_eq!(
        repository.open_unsealed(SetId(7), Identity::root()).expect_err("no such set").kind(),
        Kind::NotFound
    );
}

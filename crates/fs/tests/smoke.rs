// SPDX-License-Identifier: Apache-2.0
//! A tour of everything a session does.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::FollowLinks;

#[test]
fn a_session_is_published_and_built_upon() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let options = || SessionOptions { identity: Identity::root(), ..Default::default() };
    let session = repository.begin(&[], options()).expect("begin");
    let root = session.root().clone();
    let a = session.mkdir(&root, b"a", 0o755).expect("mkdir");
    for number in 0..1_000 {
        session.create(&a, format!("file.{number}").as_bytes(), 0o644).expect("create");
    }
    assert_eq!(session.create(&a, b"file.7", 0o644).expect_err("taken").kind(), Kind::Exists);
    let text = vec![b'x'; 10_000];
    let mut rest = &text[..];
    session
        .create_with(&a, b"text", 0o600, &mut |buffer| {
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            Ok(count)
        })
        .expect("write");
    session.link(&a, b"text", &root, b"text.link").expect("link");
    session.symlink(&root, b"soft", b"a/text").expect("symlink");
    let first = session.publish("first").expect("publish");
    drop(session);

    let session = repository.begin(&[first], options()).expect("begin");
    let root = session.root().clone();
    let found = session.namespace().find("/soft", FollowLinks::Yes).expect("follow");
    assert_eq!((found.inode.size, found.inode.nlink), (10_000, 2));
    let mut read = Vec::new();
    session
        .namespace()
        .read_all(&found.inode, &mut |bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })
        .expect("read");
    assert_eq!(read, text);
    session.rename((&root, b"a"), (&root, b"b"), RenameFlags::Replace).expect("rename");
    let b = session.namespace().dir("/b").expect("dir");
    assert_eq!(
        session.namespace().read_dir(&b, &DirCursor::default(), 5_000).expect("list").len(),
        1_001
    );
    session.mkdir(&root, b"a", 0o755).expect("mkdir again");
    assert!(session.namespace().stat("/a/file.7", FollowLinks::No).is_err());
    session.remove_tree(&root, b"b").expect("remove tree");
    assert_eq!(session.namespace().stat("/text.link", FollowLinks::No).expect("stat").nlink, 2);
    let second = session.publish("second").expect("publish");

    let namespace = repository.open(&[second], Identity::root()).expect("open");
    let names: Vec<_> = namespace
        .read_dir(namespace.root(), &DirCursor::default(), 100)
        .expect("list")
        .into_iter()
        .map(|entry| String::from_utf8(entry.name).expect("utf-8"))
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let old = repository.open(&[first], Identity::root()).expect("open");
    assert!(old.stat("/a/file.7", FollowLinks::No).is_ok());
}

// SPDX-License-Identifier: Apache-2.0
//! Requests: each verb, batches, many requests under way, snapshots.

use esker_base::{Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::RenameFlags;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::client::{LiveDir, LiveFile, Request};
use esker_live::wire::{AttributeRequest, take_attributes};

use crate::served::{LiveStore, NAME, tcp_options};

#[test]
fn every_operation_works_through_a_server() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let root = LiveDir::root();
    let dir = tree.make_directory(&root, b"d", 0o755)?;
    tree.create(&dir, b"f", 0o640)?;
    assert_eq!(tree.create(&dir, b"f", 0o640).unwrap_err().kind(), Kind::Exists);
    let content: Vec<u8> = (0..3_000_000u32).map(|byte| byte as u8).collect();
    tree.write(&dir, b"f", 0, &content)?;
    assert!(tree.read(&dir, b"f")? == content);
    let attributes = tree.lookup(&dir, b"f")?;
    assert_eq!(
        (attributes.kind, attributes.mode, attributes.size),
        (FileKind::File, 0o640, 3_000_000)
    );
    tree.set_attributes(&dir, b"f", &AttributeRequest { size: Some(3), ..Default::default() })?;
    assert_eq!(tree.read(&dir, b"f")?, [0, 1, 2]);
    tree.change(Request::make_symlink(&dir, b"f", b"s"))?;
    assert_eq!(tree.read_symlink(&dir, b"s")?, b"f");
    assert_eq!(tree.resolve(b"/d/s", FollowLinks::Yes)?.name, b"f");
    tree.change(Request::link(&LiveFile::at(&dir, b"f"), &root, b"g"))?;
    assert_eq!(tree.lookup(&root, b"g")?.nlink, 2);
    tree.rename((&root, b"g"), (&dir, b"h"))?;
    assert_eq!(tree.lookup(&root, b"g").unwrap_err().kind(), Kind::NotFound);
    let exchange = Request::rename((&dir, b"h"), (&dir, b"s"), RenameFlags::Exchange);
    tree.change(exchange)?;
    assert_eq!(tree.read_symlink(&dir, b"h")?, b"f");
    let mut names: Vec<_> = tree.list(&dir)?.into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, [&b"f"[..], b"h", b"s"]);
    let remove =
        |tree: &mut esker_live::LiveTree| tree.change(Request::remove_directory(&root, &[b"d"]));
    assert_eq!(remove(&mut tree).unwrap_err().kind(), Kind::NotEmpty);
    let unlinked = tree.connection().call(Request::unlink(&dir, &[b"f", b"h", b"s", b"x"]))?;
    let kinds: Vec<_> =
        unlinked.outcomes()?.into_iter().map(|each| each.map_err(|e| e.kind())).collect();
    assert_eq!(kinds, [Ok(()), Ok(()), Ok(()), Err(Kind::NotFound)]);
    remove(&mut tree)?;
    assert_eq!(tree.list(&root)?, []);
    tree.close()?;
    assert!(server.counters().changes > 10);
    server.end()
}

#[test]
fn a_snapshot_shows_what_was_answered_and_is_sound() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let dir = tree.make_directory(&LiveDir::root(), b"d", 0o755)?;
    let names: Vec<Vec<u8>> = (0..10_000).map(|number| format!("f{number}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let mut under_way = Vec::new();
    for batch in names.chunks(128) {
        under_way.push(tree.connection().submit(Request::create(&dir, 0o644, batch))?);
    }
    for number in under_way {
        assert!(tree.connection().wait(number)?.outcomes()?.iter().all(Result::is_ok));
    }
    let set = tree.snapshot("first")?;
    tree.change(Request::unlink(&dir, &names[..100]))?;
    let found =
        tree.connection().call(Request::lookup(&dir, &names[99..101]))?.items(take_attributes)?;
    assert_eq!((found[0].is_ok(), found[1].is_ok()), (false, true));
    assert_eq!(tree.list(&dir)?.len(), 9_900);
    let snapshot = live.repository.open(&[set], Identity::of_process())?;
    let shown = snapshot.read_dir(&snapshot.dir("/d")?, &Default::default(), 20_000)?;
    assert_eq!(shown.len(), 10_000);
    tree.close()?;
    server.end()?;
    let report = live.repository.verify(&VerifyOptions::default())?;
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_sound(), "{findings:?}");
    Ok(())
}

/// The path of an open directory may change; its identity does not.
#[test]
fn directories_that_the_server_has_forgotten_are_opened_again() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let dir = tree.make_directory(&LiveDir::root(), b"d", 0o755)?;
    let inner = tree.make_directory(&dir, b"inner", 0o755)?;
    server.end()?;
    let server = live.serve();
    tree.create(&inner, b"f", 0o644)?;
    tree.rename((&LiveDir::root(), b"d"), (&LiveDir::root(), b"e"))?;
    tree.create(&inner, b"g", 0o644)?;
    server.end()?;
    let server = live.serve();
    // Nothing is at its path any more.
    assert_eq!(tree.create(&inner, b"h", 0o644).unwrap_err().kind(), Kind::Fenced);
    let moved = tree.dir(b"/e/inner")?;
    assert_eq!(moved.id, inner.id);
    assert_eq!(tree.list(&moved)?.len(), 2);
    tree.close()?;
    server.end()
}

#[test]
fn a_client_over_tcp_proves_its_user() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = |name: &str| {
        esker_live::proof::UserSecret::read_or_make(&folder.path().join(name)).expect("a secret")
    };
    let (right, wrong) = (secret("right"), secret("wrong"));
    let live = LiveStore::new();
    let server = live.serve_with(tcp_options(&right))?;
    // Without its Unix socket, only TCP is left.
    let mut address = server.address().clone();
    let folder = format!("live/{NAME}/server/");
    live.store.delete(&format!("{folder}{}", address.instance))?;
    address.unix = None;
    address.instance = "0".repeat(16);
    address.put(&*live.store, (NAME, 0))?;
    let connect = |secret: Option<esker_live::proof::UserSecret>| {
        let options = esker_live::client::LiveClientOptions {
            secret,
            patience: std::time::Duration::from_millis(50),
            ..crate::served::client_options()
        };
        esker_live::LiveTree::connect(&live.store, NAME, options)
    };
    assert_eq!(connect(None).unwrap_err().kind(), Kind::Denied);
    assert_eq!(connect(Some(wrong)).unwrap_err().kind(), Kind::Denied);
    let mut tree = connect(Some(right))?;
    tree.create(&LiveDir::root(), b"f", 0o644)?;
    let own = Identity::of_process();
    assert_eq!(tree.lookup(&LiveDir::root(), b"f")?.uid, own.uid);
    assert!(server.counters().refused >= 1);
    Ok(())
}

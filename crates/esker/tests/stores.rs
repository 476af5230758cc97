// SPDX-License-Identifier: Apache-2.0
//! Stores, chosen by URL.

use esker::{Kind, Repository, RepositoryOptions, Store, WalkNext};

#[test]
fn a_directory_is_made_once_and_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = folder.path().join("store").to_str().expect("text").to_owned();
    assert_eq!(Repository::open(&url).expect_err("nothing is there").kind(), Kind::NotFound);
    let session = Repository::create(&url).expect("create").session().begin().expect("begin");
    session.write("/a", "1").expect("write");
    session.publish("a").expect("publish");
    assert_eq!(Repository::create(&url).expect_err("it is there").kind(), Kind::Exists);
    for url in [url.clone(), format!("file://{url}")] {
        let again = Repository::open(&url).expect("open");
        assert_eq!(again.snapshot("a").expect("open").read("/a").expect("read"), b"1");
        assert_eq!(again.store().url(), folder.path().join("store").to_str().expect("text"));
    }
}

#[test]
fn processes_that_make_a_store_at_once_agree() {
    let stores: Vec<Store> = std::thread::scope(|scope| {
        let open = || Store::open_or_create("memory:agreed").expect("open or create");
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    Repository::open_in(stores[0].clone())
        .session()
        .begin()
        .expect("begin")
        .publish("a")
        .expect("publish");
    for store in stores {
        Repository::open_in(store).snapshot("a").expect("it is one store");
    }
}

#[test]
fn urls_of_no_kind_are_refused() {
    for url in ["", "ftp://host/path", "s3://"] {
        let error = Store::open(url).expect_err("no store");
        assert!(matches!(error.kind(), Kind::Invalid | Kind::NotFound), "{url}: {error}");
    }
}

#[test]
fn a_tree_is_imported_and_exported_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    std::fs::create_dir_all(source.join("deep/er")).expect("mkdir");
    std::fs::write(source.join("deep/er/file"), vec![3; 300_000]).expect("write");
    let repository =
        RepositoryOptions::new().cache_bytes(0).create("memory:imported").expect("create");
    let session = repository.session().begin().expect("begin");
    session.create_dir("/copy").expect("mkdir");
    let counts = session.import(&source, "/copy").expect("import");
    assert_eq!((counts.files, counts.bytes, counts.problems), (1, 300_000, 0));
    session.publish("copy").expect("publish");

    let snapshot = repository.snapshot("copy").expect("open");
    let mut paths = Vec::new();
    snapshot
        .root()
        .walk(|path, _| {
            paths.push(path.display().to_string());
            Ok(WalkNext::Into)
        })
        .expect("walk");
    assert_eq!(paths, ["/", "/copy", "/copy/deep", "/copy/deep/er", "/copy/deep/er/file"]);
    let target = folder.path().join("target");
    let counts = snapshot.export("/copy", &target).expect("export");
    assert_eq!((counts.files, counts.problems), (1, 0));
    let exported = std::fs::read(target.join("deep/er/file")).expect("read");
    assert_eq!(exported, vec![3; 300_000]);
    snapshot.check_lease().expect("nothing was collected");
}

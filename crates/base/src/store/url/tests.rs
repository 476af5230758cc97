// SPDX-License-Identifier: Apache-2.0
//! Tests of URLs: which store they name, and what opening and making refuse.

use super::*;

#[test]
fn urls_name_places() {
    let directory = |path: &str| StoreLocation::Directory(path.into());
    let s3 = |bucket: &str, prefix: &str| StoreLocation::S3 {
        bucket: bucket.into(),
        prefix: prefix.into(),
    };
    for (url, location) in [
        ("/a/b", directory("/a/b")),
        ("a:b", directory("a:b")),
        ("./a://b", directory("./a://b")),
        ("file:///a%20b/c", directory("/a b/c")),
        ("file://localhost/a", directory("/a")),
        ("memory:", StoreLocation::Memory(String::new())),
        ("memory:x", StoreLocation::Memory("x".into())),
        ("s3://bucket", s3("bucket", "")),
        ("s3://bucket/a/b/", s3("bucket", "a/b")),
        ("s3://bucket/tmp/b", s3("bucket", "tmp/b")),
    ] {
        assert_eq!(StoreLocation::parse(url).expect(url), location);
    }
    let bad =
        ["", "file://host/a", "file://a", "file:///%4", "s3://", "s3:///a", "s3://b//a", "gs://b"];
    for url in bad {
        assert_eq!(StoreLocation::parse(url).expect_err(url).kind(), Kind::Invalid, "{url}");
    }
}

#[test]
fn every_directory_has_a_url() {
    for bytes in [&b"/plain"[..], b"/a b", b"/\xff\x00~", "/ä%".as_bytes()] {
        let path = PathBuf::from(OsString::from_vec(bytes.into()));
        assert_eq!(
            StoreLocation::parse(&of_path(&path)).expect("a URL"),
            StoreLocation::Directory(path)
        );
    }
}

#[test]
fn a_directory_becomes_a_store_once() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("new/store");
    let url = path.to_str().expect("UTF-8");
    let error = open(url).expect_err("absent");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("esker init --store"), "{error}");
    let made = init(url).expect("init");
    assert_eq!(made.url(), url);
    assert_eq!(init(url).expect_err("again").kind(), Kind::Exists);
    made.put_if_absent("a", b"x").expect("put");
    assert_eq!(init(url).expect_err("again").kind(), Kind::Exists);
    assert_eq!(open(&made.url()).expect("open").get("a", 1).expect("get"), "x");
    open(&format!("file://{url}")).expect("open by file URL");
}

#[test]
fn a_directory_in_use_is_refused() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let url = directory.path().to_str().expect("UTF-8");
    assert_eq!(open(url).expect_err("empty").kind(), Kind::NotFound);
    std::fs::create_dir(directory.path().join(".git")).expect("mkdir");
    assert_eq!(init(url).expect_err("in use").kind(), Kind::NotEmpty);
    std::fs::remove_dir(directory.path().join(".git")).expect("rmdir");
    std::fs::create_dir(directory.path().join("lost+found")).expect("mkdir");
    init(url).expect("init beside what the file system made");
}

#[test]
fn a_file_is_no_store() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let url = file.path().to_str().expect("UTF-8");
    assert_eq!(open(url).expect_err("a file").kind(), Kind::NotADirectory);
    assert!(init(url).is_err());
}

#[test]
fn memory_is_shared_by_name() {
    let made = init("memory:url-test").expect("init");
    made.put_if_absent("a", b"x").expect("put");
    let same = open("memory:url-test").expect("open");
    assert_eq!(same.get("a", 1).expect("get"), "x");
    assert_eq!(open("memory:url-test-other").expect_err("other").kind(), Kind::NotFound);
    assert_eq!(init("memory:url-test").expect_err("again").kind(), Kind::Exists);
}

#[cfg(not(feature = "s3"))]
#[test]
fn s3_says_how_to_build_it() {
    let error = open("s3://bucket/prefix").expect_err("not built in");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("--features s3"), "{error}");
}

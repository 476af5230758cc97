// SPDX-License-Identifier: Apache-2.0
//! The S3 store against a real server: conformance, lost answers, layout, errors.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::identity::StoreIdentity;
use esker_base::store::{S3Store, SharedStore, Store, conformance, url};

use super::faulty_proxy::{Fault, FaultyProxy};
use super::s3_server::S3Server;

/// More than one part of an upload.
const LARGE_BYTES: usize = 9 << 20;

#[test]
fn conforms() {
    let Some(server) = S3Server::start() else { return };
    let store: SharedStore = Arc::new(server.store("a/prefix"));
    conformance::all(&store);
    conformance::all(&store);
}

#[test]
fn conforms_as_a_whole_bucket() {
    let Some(server) = S3Server::start() else { return };
    let store: SharedStore = Arc::new(server.store(""));
    conformance::all(&store);
}

/// The environment belongs to the process, so the test runs itself in a child process.
#[test]
fn by_url() {
    const URL: &str = "ESKER_TEST_S3_URL";
    if let Ok(address) = std::env::var(URL) {
        assert_eq!(url::open(&address).expect_err("empty").kind(), Kind::NotFound);
        let made = url::init(&address).expect("init");
        made.put_if_absent("a", b"x").expect("put");
        assert_eq!(url::init(&address).expect_err("again").kind(), Kind::Exists);
        let same = url::open(&address).expect("open");
        assert_eq!(same.get("a", 1).expect("get"), "x");
        assert_eq!(same.url(), address);
        let inside = format!("{address}/b");
        same.put_if_absent("b/c", b"x").expect("put");
        assert_eq!(url::init(&inside).expect_err("in use").kind(), Kind::NotEmpty);
        return;
    }
    let Some(server) = S3Server::start() else { return };
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "s3::by_url", "--nocapture"])
        .envs(server.variables(server.address()))
        .env(URL, "s3://bucket/some/where")
        .status()
        .expect("run this program");
    assert!(status.success());
}

/// The client repeats a put whose answer was lost on the way, and the repeated put is refused: the
/// store recognizes its own object by the mark.
#[test]
fn lost_answers_do_not_make_winners_losers() {
    let Some(server) = S3Server::start() else { return };
    let proxy = FaultyProxy::start(server.address());
    let store = server.store_by(proxy.address(), "p");
    proxy.harm_next("PUT", "/p/small", Fault::DropAnswer);
    store.put_if_absent("small", b"x").expect("put, though the answer was lost");
    assert!(proxy.has_harmed());
    let again = store.put_if_absent("small", b"x").expect_err("taken by now");
    assert_eq!(again.kind(), Kind::Exists);

    proxy.harm_next("POST", "uploadId=", Fault::DropAnswer);
    let large = vec![3; LARGE_BYTES];
    store.put_if_absent("large", &large).expect("put, though the answer was lost");
    assert!(proxy.has_harmed());
    assert_eq!(store.get("large", u64::MAX).expect("get"), large);

    let log = store.append_log("log").expect("log");
    log.append(b"0123").expect("append");
    proxy.harm_next("PUT", "/p/log/", Fault::DropAnswer);
    log.sync().expect("sync, though the answer was lost");
    assert!(proxy.has_harmed());
    assert_eq!(store.get("log", 10).expect("get"), "0123");
}

#[test]
fn logs_are_numbered_objects_and_gather_appends() {
    let Some(server) = S3Server::start() else { return };
    let store = server.store("p");
    let log = store.append_log("a/log").expect("log");
    for _ in 0..100 {
        log.append(b"0123456789").expect("append");
    }
    assert_eq!(store.size("a/log").expect("size"), 0, "nothing was flushed yet");
    log.sync().expect("sync");
    assert_eq!(store.size("a/log").expect("size"), 1000);
    log.append(&vec![1; 5 << 20]).expect("append");
    assert_eq!(store.size("a/log").expect("size"), 1000 + (5 << 20), "worth a request");
    let mut pieces: Vec<String> = std::fs::read_dir(server.bucket_path().join("p/a/log"))
        .expect("the server's directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    pieces.sort();
    assert_eq!(pieces, ["_00000000.log", "_00000001.log", "_00000002.log"]);
    for leaf in pieces {
        let name = format!("a/log/{leaf}");
        assert_eq!(store.put_if_absent(&name, b"").expect_err("a piece").kind(), Kind::Invalid);
    }
}

/// Another process deletes a log and writes it again; the pieces that this process knows are stale.
#[test]
fn a_log_written_again_by_another_is_read_anew() {
    let Some(server) = S3Server::start() else { return };
    let (ours, theirs) = (server.store("p"), server.store("p"));
    let write = |pieces: &[&[u8]]| {
        let log = theirs.append_log("log").expect("log");
        for piece in pieces {
            log.append(piece).expect("append");
            log.sync().expect("sync");
        }
    };
    write(&[b"abcd", b"efgh"]);
    assert_eq!(ours.get_range("log", 2..6).expect("read"), "cdef");
    theirs.delete("log").expect("delete");
    assert_eq!(ours.get_range("log", 2..6).expect_err("gone").kind(), Kind::NotFound);
    write(&[b"a", b"bcdefgh"]);
    assert_eq!(ours.get_range("log", 2..6).expect("read"), "cdef");
}

#[test]
fn errors_say_what_to_do() {
    let Some(server) = S3Server::start() else { return };
    let refused = |key: &str, value: &str| {
        let variables = server.variables(server.address());
        let variables = variables.into_iter().map(|(name, old)| {
            let value = if name == key { value.into() } else { old };
            (name, value)
        });
        S3Store::with_variables("bucket", "", variables).expect("a store")
    };
    let store = refused("AWS_SECRET_ACCESS_KEY", "wrong");
    for error in [
        store.put_if_absent("a", b"x").expect_err("denied"),
        store.get("a", 1).expect_err("denied"),
        store.list("").expect_err("denied"),
        store.delete("a").expect_err("denied"),
    ] {
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
    }
    let variables = server.variables(server.address());
    let store = S3Store::with_variables("absent-bucket", "", variables).expect("a store");
    let error = store.put_if_absent("a", b"x").expect_err("no bucket");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("make it first"), "{error}");
    // `NotFound` would mean that an object is absent, such as the `esker.json` of a bucket that is
    // not a store.
    let read = StoreIdentity::read(&store).expect_err("no bucket");
    for error in [store.get("a", 1).expect_err("no bucket"), read] {
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("does the bucket absent-bucket exist?"), "{error}");
    }
}

/// Like the AWS command line, the store needs only the address.
#[test]
fn an_endpoint_without_encryption_needs_no_other_variable() {
    let Some(server) = S3Server::start() else { return };
    let mut variables = server.variables(server.address());
    variables.retain(|(name, _)| name != "AWS_ALLOW_HTTP");
    let store = S3Store::with_variables("bucket", "", variables).expect("a store");
    store.put_if_absent("a", b"x").expect("put");
}

#[test]
fn keys_and_address_may_come_from_a_profile() {
    let Some(server) = S3Server::start() else { return };
    let variables: BTreeMap<_, _> = server.variables(server.address()).into_iter().collect();
    let directory = tempfile::tempdir().expect("temporary directory");
    let (config, keys) = (directory.path().join("config"), directory.path().join("keys"));
    let endpoint = &variables["AWS_ENDPOINT_URL"];
    let text = format!("[profile lab]\nregion = us-east-1\nendpoint_url = {endpoint}\n");
    std::fs::write(&config, text).expect("write");
    let (access, secret) = (&variables["AWS_ACCESS_KEY_ID"], &variables["AWS_SECRET_ACCESS_KEY"]);
    let text = format!("[lab]\naws_access_key_id={access}\naws_secret_access_key={secret}\n");
    std::fs::write(&keys, text).expect("write");
    let variables = [
        ("AWS_PROFILE", "lab"),
        ("AWS_CONFIG_FILE", config.to_str().expect("UTF-8")),
        ("AWS_SHARED_CREDENTIALS_FILE", keys.to_str().expect("UTF-8")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let store = S3Store::with_variables("bucket", "", variables).expect("a store");
    store.put_if_absent("a", b"x").expect("put");
}

/// The library may be called from a program with a runtime of its own.
#[test]
fn works_inside_another_runtime() {
    let Some(server) = S3Server::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store = server.store("p");
        store.put_if_absent("a", b"x").expect("put");
        assert_eq!(store.get("a", 1).expect("get"), "x");
    });
}

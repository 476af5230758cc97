// SPDX-License-Identifier: Apache-2.0
//! The MongoDB backend on a server with MongoDB's protocol, and on the deployment that
//! `MONGODB_URL` names.

use esker_base::clock::SystemClock;
use esker_base::{Clock, Kind};
use esker_workbench::backend::{Backend, MongoBackend, conformance};
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::{DatasetId, ObjectId, WorkingSetSize};
use esker_workbench::progress::RunProgress;
use esker_workbench::run::run_threads;
use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use rustix::process::{Pid, Signal, kill_process};

use super::mongo_server::MongoServer;

const OBJECT: ObjectId = DatasetId { rank: 0, number: 0 }.object(0);

const MARKERS: &str = "esker_workbench_marker";
const OBJECTS: &str = "esker_workbench_objects";

/// Largest object, see `CONTENT_BYTES_MAX`.
const OBJECT_BYTES_MAX: u64 = (16 << 20) - 256;

fn backend(url: &str) -> MongoBackend {
    MongoBackend::new(url, None).expect("a target")
}

/// `url` with further options.
fn with_options(url: &str, options: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{options}")
}

/// The database as another program sees it.
struct OtherProgram {
    url: String,
}

impl OtherProgram {
    fn of(server: &MongoServer) -> Self {
        Self { url: server.url() }
    }

    /// Calls `action` with a client that lives as long.
    fn with_database<R>(&self, action: impl AsyncFnOnce(Database) -> R) -> R {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let client = Client::with_uri_str(&self.url).await.expect("a client");
            action(client.default_database().expect("a database")).await
        })
    }

    fn insert(&self, collection: &str, document: Document) {
        self.with_database(async |database| {
            database.collection(collection).insert_one(document).await.expect("inserted");
        });
    }

    fn has(&self, collection: &str, filter: Document) -> bool {
        let found = self.with_database(async |database| {
            database.collection::<Document>(collection).find_one(filter).await
        });
        found.expect("an answer").is_some()
    }

    fn delete(&self, collection: &str, filter: Document) {
        let deleted = self.with_database(async |database| {
            database.collection::<Document>(collection).delete_one(filter).await
        });
        assert_eq!(deleted.expect("deleted").deleted_count, 1);
    }

    fn collections(&self) -> Vec<String> {
        let names = self.with_database(async |database| database.list_collection_names().await);
        names.expect("names")
    }
}

#[test]
fn mongodb_conforms() {
    MongoServer::each(|server| {
        let backend = backend(&server.url());
        conformance::all(&backend);
        // The collections are gone, so a second working set can be made.
        conformance::all(&backend);
        let left = OtherProgram::of(server).collections();
        assert!(!left.iter().any(|name| name == MARKERS || name == OBJECTS), "{left:?}");
    });
}

/// All phases succeed, and the result states the server's version and durability.
#[test]
fn runs_measure_and_reuse_a_working_set() {
    MongoServer::each(|server| {
        let backend = backend(&server.url());
        let size = WorkingSetSize {
            ranks: 2,
            datasets: 2,
            objects: 20,
            iterations: 10,
            object_bytes: 3_901,
            rank_offset: 1,
        };
        for keep in [true, false] {
            let options = RunOptions { keep, names: true, ..RunOptions::new(size) };
            let progress = RunProgress::new(size.ranks);
            let result = run_threads(&backend, &options, &SystemClock, &progress).expect("a run");
            let failed: u64 = result.phases.iter().map(|phase| phase.failed()).sum();
            assert_eq!(failed, 0, "{:?}", result.warnings);
            assert_eq!(result.backend, "mongodb");
            let service = &result.environment.service;
            assert!(service.starts_with("MongoDB "), "{service}");
            assert!(service.contains(" w=") && service.contains(" read_concern="), "{service}");
            assert_eq!(backend.read_marker().expect("an answer").is_some(), keep);
        }
    });
}

#[test]
fn the_service_states_the_concerns_of_the_target() {
    MongoServer::each(|server| {
        let options = "w=majority&journal=true&readConcernLevel=majority&readPreference=nearest";
        let service = backend(&with_options(&server.url(), options)).service().expect("an answer");
        assert!(service.contains(" w=majority j=true "), "{service}");
        assert!(service.contains("read_concern=majority read_preference=nearest"), "{service}");
    });
    let Some(server) = MongoServer::start() else { return };
    let service = backend(&server.url()).service().expect("an answer");
    assert!(service.contains("deployment=standalone") && service.contains(" w=1 "), "{service}");
}

/// Datasets with numbers that begin alike are told apart.
#[test]
fn a_list_is_of_one_dataset() {
    MongoServer::each(|server| {
        let backend = backend(&server.url());
        backend.write_marker(b"{}").expect("a marker");
        {
            let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
            let datasets = [(1, 1, 300), (1, 10, 2), (1, 0, 1), (10, 1, 4), (11, 1, 5)];
            for (rank, number, objects) in datasets {
                for object in 0..objects {
                    let object = DatasetId { rank, number }.object(object);
                    connection.create(object, b"bytes").expect("created");
                }
            }
            for (rank, number, objects) in datasets {
                for with_attributes in [false, true] {
                    let dataset = DatasetId { rank, number };
                    let found = connection.list(dataset, with_attributes).expect("a listing");
                    assert_eq!(found, objects, "{dataset}");
                }
            }
        }
        assert_eq!(backend.clear().expect("cleared"), 312);
    });
}

#[test]
fn other_documents_are_never_touched() {
    MongoServer::each(|server| {
        let other = OtherProgram::of(server);
        let backend = backend(&server.url());
        for collection in [MARKERS, OBJECTS] {
            other.insert(collection, doc! { "_id": "thesis" });
            assert_eq!(backend.write_marker(b"{}").expect_err("not empty").kind(), Kind::NotEmpty);
            assert_eq!(backend.clear().expect_err("no working set").kind(), Kind::NotFound);
            other.delete(collection, doc! { "_id": "thesis" });
        }
        other.insert("esker_workbench_thesis", doc! { "_id": "thesis" });
        backend.write_marker(b"{}").expect("a marker");
        let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
        connection.create(OBJECT, b"bytes").expect("created");
        let others = [
            (OBJECTS, doc! { "_id": "rank-0/set-0/object-1.bak" }),
            (OBJECTS, doc! { "_id": 7 }),
            (MARKERS, doc! { "_id": "thesis" }),
        ];
        for (collection, document) in others {
            other.insert(collection, document.clone());
            for _ in 0..2 {
                let refused = backend.clear().expect_err("other documents");
                assert_eq!(refused.kind(), Kind::NotEmpty, "{refused}");
                assert!(refused.to_string().contains(collection), "{refused}");
                assert!(backend.read_marker().expect("an answer").is_some());
                assert!(other.has(collection, document.clone()));
            }
            other.delete(collection, document);
        }
        connection.create(OBJECT, b"bytes").expect("the refused cleanups removed it");
        drop(connection);
        assert_eq!(backend.clear().expect("cleared"), 1);
        other.delete("esker_workbench_thesis", doc! { "_id": "thesis" });
    });
}

/// A field that another program writes under a name of the workbench is an error, not a panic.
#[test]
fn foreign_fields_are_refused() {
    MongoServer::each(|server| {
        let other = OtherProgram::of(server);
        let backend = backend(&server.url());
        other.insert(MARKERS, doc! { "_id": "working-set", "content": "text" });
        assert_eq!(backend.read_marker().expect_err("no marker").kind(), Kind::TooLarge);
        other.delete(MARKERS, doc! { "_id": "working-set" });
        let large = mongodb::bson::Binary {
            subtype: mongodb::bson::spec::BinarySubtype::Generic,
            bytes: vec![b' '; 65_537],
        };
        other.insert(MARKERS, doc! { "_id": "working-set", "content": large });
        assert_eq!(backend.read_marker().expect_err("no marker").kind(), Kind::TooLarge);
        other.delete(MARKERS, doc! { "_id": "working-set" });
        backend.write_marker(b"{}").expect("a marker");
        for document in [doc! {}, doc! { "size": -1_i64, "content": 7 }] {
            let mut document = document;
            document.insert("_id", OBJECT.to_string());
            other.insert(OBJECTS, document);
            let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
            assert_eq!(connection.stat(OBJECT).expect_err("no size").kind(), Kind::Corrupt);
            let damaged = connection.read(OBJECT, &mut Vec::new()).expect_err("no content");
            assert_eq!(damaged.kind(), Kind::Corrupt, "{damaged}");
            assert!(damaged.to_string().contains("/rank-0/set-0/object-0"), "{damaged}");
            connection.delete(OBJECT).expect("deleted");
        }
        assert_eq!(backend.clear().expect("cleared"), 0);
    });
}

#[test]
fn objects_fill_a_document_and_larger_ones_are_refused() {
    let of_size =
        |object_bytes| RunOptions::new(WorkingSetSize { object_bytes, ..conformance::SIZE });
    let target = backend("mongodb://127.0.0.1:1/bench");
    target.check(&of_size(OBJECT_BYTES_MAX)).expect("a document");
    let refused = target.check(&of_size(OBJECT_BYTES_MAX + 1)).expect_err("too large");
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.to_string().contains(&format!("-S {OBJECT_BYTES_MAX}")), "{refused}");
    MongoServer::each(|server| {
        let backend = backend(&server.url());
        backend.write_marker(b"{}").expect("a marker");
        let object = DatasetId { rank: u32::MAX, number: u32::MAX }.object(1 << 60);
        let content: Vec<u8> = (0..OBJECT_BYTES_MAX).map(|at| (at % 251) as u8).collect();
        {
            let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
            connection.create(object, &content).expect("created");
            assert_eq!(connection.stat(object).expect("a size"), OBJECT_BYTES_MAX);
            let mut found = Vec::new();
            connection.read(object, &mut found).expect("its content");
            assert!(found == content, "the content is another");
        }
        assert_eq!(backend.clear().expect("cleared"), 1);
    });
}

/// Neither targets nor errors show the password, no matter which part of a URL is wrong.
#[test]
fn passwords_are_in_no_target_and_no_error() {
    let url = "mongodb://user:se%2Fcret@127.0.0.1:1/bench?serverSelectionTimeoutMS=100";
    let backend = MongoBackend::new(url, Some("other")).expect("a target");
    assert!(!backend.target().contains("cret") && !format!("{backend:?}").contains("cret"));
    let lost = backend.read_marker().expect_err("no server");
    assert_eq!(lost.kind(), Kind::Unavailable);
    assert!(!lost.to_string().contains("cret"), "{lost}");
    for wrong in [
        "mongodb://user:secret@host:port/bench",
        "mongodb://user:sec/ret@host",
        "mongodb://user:sec@ret@host/bench",
        "mongodb://user:secret?@host/bench",
        "mongodb://user:secret%@host/bench",
        "mongodb://user:secret@host/bench?w=x&journal=secret",
        "mongodb://user:secret@host/",
        "mongodb://user:secret@host/bench?w=0",
    ] {
        let refused = MongoBackend::new(wrong, Some("secret")).expect_err(wrong);
        assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
        let said = refused.to_string();
        assert!(!said.contains("sec") && !said.contains("ret@"), "{wrong}: {said}");
    }
    let Some(server) = MongoServer::start() else { return };
    let url = server.url().replace("mongodb://", "mongodb://user@");
    let backend = MongoBackend::new(&url, Some("secret")).expect("a target");
    let refused = backend.read_marker().expect_err("the server has no users");
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    assert!(!refused.to_string().contains("secret"), "{refused}");
}

/// A server that ends makes calls fail with a kind; nothing waits or panics.
#[test]
fn a_server_that_ends_makes_calls_fail() {
    let Some(server) = MongoServer::start() else { return };
    let url = with_options(&server.url(), "serverSelectionTimeoutMS=500");
    let backend = backend(&url);
    backend.write_marker(b"{}").expect("a marker");
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    connection.create(OBJECT, b"bytes").expect("created");
    drop(server);
    let begin_ns = SystemClock.monotonic_ns();
    for _ in 0..2 {
        let lost = connection.stat(OBJECT).expect_err("no server");
        assert_eq!(lost.kind(), Kind::Unavailable, "{lost}");
    }
    assert_eq!(backend.read_marker().expect_err("no server").kind(), Kind::Unavailable);
    drop(connection);
    let waited_ns = SystemClock.monotonic_ns() - begin_ns;
    assert!(waited_ns < 10_000_000_000, "{waited_ns} ns");
}

/// A server that hangs fails the calls that wait for it.
#[test]
fn a_server_that_stops_answering_makes_calls_fail() {
    let Some(server) = MongoServer::start() else { return };
    let options = "serverSelectionTimeoutMS=500&heartbeatFrequencyMS=500&connectTimeoutMS=500";
    let backend = backend(&with_options(&server.url(), options));
    backend.write_marker(b"{}").expect("a marker");
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    connection.create(OBJECT, b"bytes").expect("created");
    let process = Pid::from_child(server.process());
    kill_process(process, Signal::STOP).expect("stopped");
    let begin_ns = SystemClock.monotonic_ns();
    for _ in 0..2 {
        let lost = connection.stat(OBJECT).expect_err("no answer");
        assert_eq!(lost.kind(), Kind::Unavailable, "{lost}");
    }
    let waited_ns = SystemClock.monotonic_ns() - begin_ns;
    assert!(waited_ns < 20_000_000_000, "{waited_ns} ns");
    kill_process(process, Signal::CONT).expect("continued");
    // A server that is back is used again, once the driver has seen that.
    let found = (0..20).find_map(|_| connection.stat(OBJECT).ok());
    assert_eq!(found, Some(5));
}

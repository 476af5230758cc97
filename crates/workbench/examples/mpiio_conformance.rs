// SPDX-License-Identifier: Apache-2.0
//! The conformance suite on MPI-IO, as a program: `scripts/test_mpi.sh` runs it under both MPIs.
//!
//! usage: `mpiio_conformance DIRECTORY threads|initial`
//!   `threads`  the suite, whose racing ranks are threads
//!   `initial`  MPI for the initial thread alone: other threads are refused, and objects come and
//!              go

use std::path::Path;
use std::sync::Arc;

use esker_base::Kind;
use esker_comm::mpi::{MpiProcess, MpiThreads};
use esker_workbench::backend::{Backend, MpiIoBackend, conformance};
use esker_workbench::pattern::{DatasetId, ObjectId};

const OBJECT: ObjectId = DatasetId { rank: 0, number: 0 }.object(7);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, mode] = &arguments[..] else { panic!("a directory and a mode") };
    // Ranks of a job do not share a working set here.
    let directory = Path::new(directory).join(std::process::id().to_string());
    std::fs::create_dir(&directory).expect("a new directory");
    let threads = match &mode[..] {
        "threads" => MpiThreads::All,
        "initial" => MpiThreads::Initial,
        other => panic!("{other}: expected threads or initial"),
    };
    let process = MpiProcess::begin(threads).expect("MPI");
    let again = MpiProcess::begin(threads).expect_err("MPI begins once");
    assert_eq!(again.kind(), Kind::Exists);
    let set = directory.join("set");
    let backend = MpiIoBackend::new(&set, process.clone()).expect("a new directory");
    if threads == MpiThreads::All {
        conformance::all(&backend);
        assert!(!set.exists(), "cleanup removes the directory");
        refuses_paths_with_colons(&directory, &process);
        let service = MpiIoBackend::new(&set, process.clone()).and_then(|set| set.service());
        let service = service.expect("a version");
        assert!(!service.contains('\n'), "{service}");
        println!("MPI-IO conforms: {service}");
    } else {
        serves_the_initial_thread(&backend);
        println!("MPI-IO refuses other threads: {}", MpiProcess::library());
    }
    drop((backend, process));
    let ended = MpiProcess::begin(threads).expect_err("MPI has ended");
    assert_eq!(ended.kind(), Kind::Exists, "finalized by the last owner");
    std::fs::remove_dir_all(&directory).expect("removed");
}

fn refuses_paths_with_colons(directory: &Path, process: &Arc<MpiProcess>) {
    let refused = MpiIoBackend::new(&directory.join("a:b"), process.clone());
    let refused = refused.expect_err("MPI-IO takes it for a file system");
    assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    assert!(!directory.join("a:b").exists());
}

fn serves_the_initial_thread(backend: &MpiIoBackend) {
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let connection = backend.connect(0, &conformance::SIZE);
            connection.err().expect("another thread").kind()
        });
        assert_eq!(refused.join().expect("no panic"), Kind::Unsupported);
    });
    backend.write_marker(b"{}").expect("a marker");
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    let mut found = Vec::new();
    connection.add_rank(0).expect("a rank");
    let absent = connection.create(OBJECT, b"bytes").expect_err("no dataset");
    assert_eq!(absent.kind(), Kind::NotFound, "{absent}");
    connection.mkdir(OBJECT.dataset).expect("a dataset");
    for _ in 0..2 {
        let absent = connection.delete(OBJECT).expect_err("not created");
        assert_eq!(absent.kind(), Kind::NotFound, "{absent}");
        connection.create(OBJECT, b"bytes").expect("created");
        let again = connection.create(OBJECT, b"other").expect_err("it exists");
        assert_eq!(again.kind(), Kind::Exists, "{again}");
        connection.read(OBJECT, &mut found).expect("read");
        assert_eq!(found, b"bytes");
        connection.delete(OBJECT).expect("deleted");
    }
    drop(connection);
    assert_eq!(backend.clear().expect("cleared"), 0);
}

// SPDX-License-Identifier: Apache-2.0
//! Live namespaces: the tree that several clients change, and directories that sessions have filled.

use std::sync::Arc;

use esker::{FileKind, Kind, Repository, Result, Store};
use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::repository::Repository as SetRepository;
use esker_fs::session::SessionOptions;
use esker_live::{LiveServer, LiveServerOptions};

/// A repository with the live namespace `run`, and its server.
fn served() -> Result<(Repository, LiveServer)> {
    let objects: SharedStore = Arc::new(MemoryStore::new());
    let repository = esker::RepositoryOptions::new().open_in(Store::of_shared(objects.clone()));
    repository.create_live("run", ["base"; 0])?;
    let session = SessionOptions { heartbeat: None, ..SessionOptions::default() };
    let options = LiveServerOptions::local(session, Arc::new(SystemClock));
    let server = LiveServer::start(&SetRepository::new(objects), ("run", 0), options)?;
    Ok((repository, server))
}

#[test]
fn clients_see_the_changes_of_each_other() -> Result<()> {
    let (repository, server) = served()?;
    assert_eq!(repository.create_live("run", ["base"; 0]).unwrap_err().kind(), Kind::Exists);
    assert_eq!(repository.live("none").unwrap_err().kind(), Kind::NotFound);
    let (one, other) = (repository.live("run")?, repository.live("run")?);
    one.create_dir_all("/results//1/")?;
    one.create_dir_all("results/1")?;
    assert_eq!(other.create_dir("/results").unwrap_err().kind(), Kind::Exists);
    assert_eq!(other.create_dir("/none/below").unwrap_err().kind(), Kind::NotFound);

    let names: Vec<Vec<u8>> = (0..3_000).map(|n| format!("n{n}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    assert!(one.create_many("/results/1", &names)?.iter().all(Result::is_ok));
    let again = other.create_many("/results/1", &[b"new", names[5]])?;
    assert!(again[0].is_ok() && again[1].as_ref().is_err_and(|e| e.kind() == Kind::Exists));
    let found = other.metadata_many("/results/1", &[names[2_999], b"none"])?;
    assert!(found[0].as_ref().is_ok_and(|file| file.mode == 0o644 && file.size == 0));
    assert!(found[1].as_ref().is_err_and(|error| error.kind() == Kind::NotFound));
    assert_eq!(one.entries("/results/1")?.len(), 3_001);

    one.write("/results/file", vec![7; 3_000_000])?;
    assert_eq!(other.read("/results/file")?, vec![7; 3_000_000]);
    other.write("/results/file", "less")?;
    assert_eq!(one.read("/results/file")?, b"less");
    assert_eq!(one.write("/results", "x").unwrap_err().kind(), Kind::IsADirectory);
    assert_eq!(one.write("/", "x").unwrap_err().kind(), Kind::IsADirectory);
    one.rename("/results/file", "/moved")?;
    assert_eq!(other.metadata("/moved")?.kind, FileKind::File);
    assert_eq!(other.remove_dir("/results").unwrap_err().kind(), Kind::NotEmpty);
    other.remove_file("/moved")?;
    assert_eq!(one.symlink_metadata("/moved").unwrap_err().kind(), Kind::NotFound);
    one.sync()?;
    other.snapshot("monday")?;
    assert_eq!(repository.snapshot("monday")?.entries("/results/1")?.count(), 3_001);
    drop((one, other));
    server.end()
}

#[test]
fn a_directory_of_a_session_is_inserted_at_once() -> Result<()> {
    let (repository, server) = served()?;
    let (live, other) = (repository.live("run")?, repository.live("run")?);
    live.create_dir("/results")?;
    let session = repository.session().insertable().begin()?;
    session.create_dir_all("/7/deep")?;
    for number in 0..100 {
        session.write(format!("/7/deep/{number}"), "written")?;
    }
    assert_eq!(live.insert(&session, "/7/deep", "/x").unwrap_err().kind(), Kind::Invalid);
    assert_eq!(live.insert(&session, "/", "/x").unwrap_err().kind(), Kind::Invalid);
    assert_eq!(live.insert(&session, "/7", "/results").unwrap_err().kind(), Kind::Exists);
    live.insert(&session, "7", "/results/7")?;
    assert_eq!(other.entries("/results/7/deep")?.len(), 100);
    assert_eq!(other.read("/results/7/deep/42")?, b"written");
    assert_eq!(session.write("/7/more", "").unwrap_err().kind(), Kind::Closed);
    drop(session);
    assert_eq!(repository.open_sessions()?.len(), 1, "that of the live namespace");

    let ordinary = repository.session().begin()?;
    ordinary.create_dir_all("/8")?;
    assert_eq!(live.insert(&ordinary, "/8", "/results/8").unwrap_err().kind(), Kind::Invalid);
    drop((live, other));
    server.end()
}

#[test]
fn the_parts_of_a_job_are_inserted_as_one_directory() -> Result<()> {
    let (repository, server) = served()?;
    let live = repository.live("run")?;
    let job = repository.job(esker::JobId::random());
    for rank in 0..3 {
        let part = job.part(rank).insertable().begin()?;
        part.create_dir_all("/step/data")?;
        part.write(format!("/step/data/{rank}"), "done")?;
        part.complete()?;
    }
    assert_eq!(job.publish("step")?.conflicts.len(), 0);
    live.insert_snapshot("step", "/step", "/inserted")?;
    assert_eq!(live.entries("/inserted/data")?.len(), 3);
    assert_eq!(repository.snapshot("step")?.entries("/step/data")?.count(), 3);
    let again = live.insert_snapshot("step", "/step", "/again").unwrap_err();
    assert_eq!(again.kind(), Kind::Exists);
    drop(live);
    server.end()
}

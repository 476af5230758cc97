// SPDX-License-Identifier: Apache-2.0
//! Tests of the interface for programs, and its examples.

mod costs;
mod ends;
mod examples;
mod files;
mod jobs;
mod live;
mod live_job;
mod paths;
mod stores;
mod surface;

use esker::backend::MemoryStore;
use esker::{
    Dir, File, IndexedDir, IndexedDraft, Job, LiveNamespace, Namespace, Repository, Session, Store,
};

/// A repository in memory of its own.
fn repository() -> Repository {
    Repository::open_in(Store::of_backend(MemoryStore::new()))
}

/// A private session on nothing.
fn session() -> Session {
    repository().session().begin().expect("begin")
}

/// Threads share everything but the rank of a job with shared files.
const _: () = {
    const fn are_shared<T: Send + Sync>() {}
    are_shared::<(Store, Repository, Namespace, Session)>();
    are_shared::<(Dir, File, Job, IndexedDir, IndexedDraft, LiveNamespace)>();
};

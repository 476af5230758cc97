// SPDX-License-Identifier: Apache-2.0
//! Jobs of threads in a store in memory.

use std::sync::Arc;
use std::time::Duration;

use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_comm::threads::{self, ThreadTransport};
use esker_fs::job::JobId;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_shared::{SharedJob, SharedOptions};
use esker_table::manifest::SetId;
use esker_table::tree::TreeOptions;

pub const JOB: JobId = JobId(7);

pub type Job<'a> = SharedJob<&'a mut ThreadTransport>;

pub fn repository(store: &SharedStore) -> Repository {
    Repository::with(store.clone(), 1 << 20, Arc::new(SystemClock))
}

pub fn memory() -> SharedStore {
    Arc::new(MemoryStore::new())
}

pub fn session() -> SessionOptions {
    let tree = TreeOptions { background: false, memory_bytes: 1 << 22, ..TreeOptions::default() };
    SessionOptions {
        identity: Identity::root(),
        tree,
        // No heartbeat comes between the requests that a test counts.
        heartbeat: None,
        ..SessionOptions::default()
    }
}

pub fn options(servers_per_node: u32, slice_bytes: u64) -> SharedOptions {
    let session = session();
    SharedOptions { servers_per_node, slice_bytes, session, ..SharedOptions::default() }
}

/// Runs `work` as every rank of the job on top of `bases`.
pub fn run<R: Send>(
    store: &SharedStore,
    (ranks, per_node): (u32, u32),
    bases: &[SetId],
    options: &SharedOptions,
    work: impl Fn(Job) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let repository = repository(store);
    threads::run(ranks, per_node, |transport| {
        work(SharedJob::begin(transport, &repository, JOB, bases, options)?)
    })
}

/// Looks up segments of `file`, up to `end`, in the slices that have the same server as the first
/// one. Does so often enough that slices move at the next barrier, provided that there are other
/// servers and several such slices. All ranks call it.
pub fn crowd(job: &mut Job, file: u128, end: u64) -> Result<()> {
    let map = job.segments().map().clone();
    // The owner of a slice depends on the file's number, which is random.
    let is_hot = |at: &u64| map.owner(file, *at) == map.owner(file, 0);
    let hot: Vec<u64> = (0..end).step_by(50).filter(is_hot).collect();
    let servers = map.servers().len();
    if servers > 1 && hot.iter().any(|at| map.slot(file, *at) != map.slot(file, 0)) {
        let asked: Vec<u64> = hot.into_iter().cycle().take(160_000 / servers).collect();
        job.segments().get_segments(file, &asked)?;
    }
    // The counts are complete now.
    job.segments().barrier()
}

/// The whole content of a file of a published set.
pub fn content(repository: &Repository, set: SetId, path: &str) -> Vec<u8> {
    let namespace = repository.open(&[set], Identity::root()).expect("open");
    let inode = namespace.stat(path, FollowLinks::No).expect("stat");
    let mut content = Vec::new();
    let taken = namespace.read_all(&inode, &mut |bytes| {
        content.extend_from_slice(bytes);
        Ok(())
    });
    taken.expect("read");
    content
}

/// Fails with the findings of `verify`, before and after garbage collection.
pub fn assert_sound(repository: &Repository) {
    for _ in 0..2 {
        let report = repository.verify(&VerifyOptions::default()).expect("verify");
        assert!(report.is_sound(), "{:#?}", report.findings);
        let eager = GcOptions {
            grace: Duration::ZERO,
            dry_run: false,
            scan_data: true,
            ..GcOptions::default()
        };
        repository.gc(&eager).expect("gc");
    }
}

pub fn same(got: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    if let Some(at) = (0..got.len()).find(|at| got[*at] != wanted[*at]) {
        panic!("{what}: byte {at} is {}, not {}", got[at], wanted[at]);
    }
}

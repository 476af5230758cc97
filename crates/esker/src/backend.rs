// SPDX-License-Identifier: Apache-2.0
//! Backend: the trait that a store of one's own implements, and the suite that it must pass.
//!
//! A repository needs little of its store: objects that are put once and never replaced, logs that
//! grow, and listings. `put_if_absent` alone decides races, so it must be atomic. Implement
//! [`ObjectStore`], run [`conformance::all`] against it, and open repositories in it with
//! [`Store::of_backend`](crate::Store::of_backend). The example `own_store` is one that keeps
//! everything in a map.
//!
//! [`MemoryStore`] and [`PosixStore`] are those behind the URLs. [`CountedStore`] counts the
//! requests to another store, and [`FaultStore`] makes another store fail on request, for tests.
//!
//! ```
//! use std::sync::Arc;
//! use esker::backend::{CountedStore, MemoryStore};
//! use esker::{Repository, Store};
//!
//! let counted = Arc::new(CountedStore::new(Arc::new(MemoryStore::new())));
//! let repository = Repository::open_in(Store::of_shared(counted.clone()));
//! let session = repository.session().begin()?;
//! let before = counted.counts();
//! for number in 0..10_000 {
//!     session.root().create_empty(format!("{number}"))?;
//! }
//! let during = counted.counts() - before;
//! assert_eq!((during.reads, during.writes), (0, 0));
//! # Ok::<(), esker::Error>(())
//! ```

pub use esker_base::Bytes;
pub use esker_base::clock::SystemClock;
pub use esker_base::store::{
    AppendLog, CountedStore, FaultEffect, FaultStore, MemoryStore, ObjectInfo, ObjectWriter,
    PosixStore, RequestCounts, SharedStore, Store as ObjectStore, conformance, name,
};

// SPDX-License-Identifier: Apache-2.0
//! Esker for programs: file systems as stacks of snapshots in a directory or a bucket.
//!
//! A program opens a [`Repository`] by the URL of its store, begins a [`Session`] on top of
//! snapshots that others have published, changes files at memory speed, and publishes the result
//! under a name. There is no server: every process that can access the store has the file system.
//!
//! ```
//! use esker::Repository;
//!
//! let repository = Repository::create("memory:")?;
//!
//! // One program prepares the input,
//! let session = repository.session().begin()?;
//! session.create_dir_all("/input")?;
//! session.write("/input/mesh", vec![7; 100_000])?;
//! session.publish("input")?;
//!
//! // another one builds on it: nothing is copied,
//! let session = repository.session().on("input").begin()?;
//! assert_eq!(session.read("/input/mesh")?.len(), 100_000);
//! session.write("/result", "42")?;
//! session.publish("result")?;
//!
//! // and a third one reads the result, and what it was made from.
//! let result = repository.snapshot("result")?;
//! assert_eq!(result.read("/result")?, b"42");
//! assert!(result.exists("/input/mesh")?);
//! # Ok::<(), esker::Error>(())
//! ```
//!
//! # Where to begin
//!
//! | to | use | example |
//! |---|---|---|
//! | read a snapshot, or several as one tree | [`Repository::snapshot`], [`Repository::stack`], [`Namespace`] | `snapshot_and_session` |
//! | make a snapshot | [`Repository::session`], [`Session`], [`Dir`], [`File`] | `snapshot_and_session` |
//! | merge a stack into one change set | [`Repository::squash`] | `stack_and_squash` |
//! | write one result with many ranks | [`Repository::job`], [`Job`] | `job_of_ranks` |
//! | write one file with many ranks | [`Job::share_files`], [`SharedFile`] | `shared_file` |
//! | find records by key | [`Session::draft_indexed`], [`IndexedDir`] | `indexed_directory` |
//! | change one tree with many clients at once | [`Repository::live`], [`LiveNamespace`] | |
//! | serve such a tree by the ranks that use it | [`Repository::live_job`], [`LiveJob`] | `live_job` |
//! | keep the objects elsewhere | [`backend`] | `own_store` |
//! | use sorted records without files | the crate `esker-table` | `engine` |
//!
//! The examples are in `crates/esker/examples`: `cargo run -p esker --example shared_file`. The
//! [`guide`] explains more, beginning with [`guide::programs`].
//!
//! # Errors
//!
//! Every call returns the same [`Error`]. Its [`Kind`] says what the caller can do, its text names
//! the object and the next step. Kinds map to errno ([`Kind::errno`]), and the error converts into
//! [`std::io::Error`].
//!
//! | kind | what to do |
//! |---|---|
//! | `Conflict` | read again and retry: somebody else changed the same thing |
//! | `Fenced` | stop: another process took the session over |
//! | `NoSpace` | make room and retry: the call changed nothing |
//! | `Unavailable` | retry later: the store, or another rank, did not answer |
//! | `Closed` | begin or resume a session: this one has ended, or a write of it failed before |
//! | `Corrupt` | [`Repository::verify`] names what is lost; everything else stays readable |
//!
//! # What survives a crash
//!
//! | call | once it has returned |
//! |---|---|
//! | [`Session::publish`], [`Session::snapshot`], [`Session::complete`], [`Job::publish`] | survives power loss |
//! | [`Session::sync`], [`Session::flush`], [`File::sync`], [`Session::suspend`] | everything before it survives power loss, if the session is [resumable](SessionBuilder::resumable) |
//! | any change, durability `Always` | survives power loss |
//! | any change, durability `Async` | survives the death of the process 100 ms later (in a directory), power loss after a sync |
//! | any change, durability `None` or in a private session | lasts as long as the process |
//!
//! A snapshot never changes, and a crash leaves the state after some prefix of a session's
//! operations, never a mixture. [`guide::durability`] has the details.
//!
//! # What it costs
//!
//! Opening a stack costs two requests for each change set. After that a look-up costs at most one
//! block read for each layer, and mostly none; a create none at all; reading a file one request for
//! each log that has a part of it. Each method says what it costs beyond that.
//!
//! # Threads
//!
//! All types except those of a shared job are `Send` and `Sync`, and cheap to clone where they can
//! be cloned. A [`SharedJob`] belongs to the thread of its rank.

pub mod backend;
mod dir;
mod entries;
mod file;
pub mod guide;
mod indexed;
mod job;
mod live;
#[cfg(feature = "server")]
mod live_job;
mod metadata;
mod namespace;
mod repository;
mod session;
mod session_builder;
mod shared;
mod snapshot_ref;
mod store;
mod tree_handle;

pub use dir::Dir;
pub use entries::{DirEntries, DirEntry};
pub use file::{File, FileStream, OpenOptions};
pub use indexed::{IndexedDir, IndexedDraft};
pub use job::Job;
pub use live::LiveNamespace;
#[cfg(feature = "server")]
pub use live_job::{LiveJob, LiveJobBuilder};
pub use metadata::Metadata;
pub use namespace::Namespace;
pub use repository::{Repository, RepositoryOptions};
pub use session::Session;
pub use session_builder::SessionBuilder;
pub use shared::{SharedFile, SharedJob, SharedJobBuilder};
pub use snapshot_ref::SnapshotRef;
pub use store::Store;

pub use esker_base::store::StoreSharing;
pub use esker_base::{Bytes, Clock, Error, Kind, Result};
pub use esker_comm::job::RankContext;
#[cfg(feature = "mpi")]
pub use esker_comm::mpi;
pub use esker_comm::{Rank, Routing, Transport, tcp, threads};
pub use esker_fs::inode::FileKind;
pub use esker_fs::inode::xattr::Xattrs;
pub use esker_fs::job::{ConflictKind, JobId, JobPart, JobReport, PartConflict};
pub use esker_fs::maintenance::squash::{SquashOptions, SquashReport};
pub use esker_fs::maintenance::verify::{
    Finding, Severity, VerifyOptions, VerifyReport, VerifyTargets,
};
pub use esker_fs::names::PublishedName;
pub use esker_fs::names::delete::FormerName;
pub use esker_fs::ops::{AttributeChanges, RenameFlags, XattrSet};
pub use esker_fs::retention::gc::{GcOptions, GcReport};
pub use esker_fs::session::open_sessions::OpenSession;
pub use esker_fs::stack::identity::Identity;
pub use esker_fs::traversal::tally::TransferCounts;
pub use esker_fs::traversal::walk::WalkNext;
pub use esker_imd::{
    DirectoryOptions, DirectorySchema, DirectoryWriter, IndexedValue, RecordLayout,
    SessionDirectory, ValueFormat, WriteSummary,
};
pub use esker_live::client::LiveEntry;
pub use esker_live::wire::LiveAttributes;
pub use esker_shared::{AgreedAttributes, RemoteReads};
pub use esker_table::manifest::SetId;
pub use esker_table::tree::Durability;

// SPDX-License-Identifier: Apache-2.0
//! Job: many writers of one result, each with a part of its own.

use esker_base::{Error, Kind, Result};
use esker_fs::job::{JobId, JobPart, JobReport};
use esker_imd::{RecordLayout, SessionDirectory, ValueFormat};
use esker_table::manifest::SetId;

use crate::indexed::IndexedDraft;
use crate::repository::Repository;
use crate::session_builder::SessionBuilder;
use crate::shared::SharedJobBuilder;

/// A job: ranks that each write a part of one result, without talking to each other.
///
/// Ranks may be threads, processes or machines; all they agree on is the job's id and the snapshots
/// to build on. A part is a session; [`Session::complete`](crate::Session::complete) ends it.
/// Publishing joins the parts by reference, so it costs as much for large parts as for small ones,
/// and it reports every name that several parts changed differently.
///
/// For one file that all ranks write, see [`Job::share_files`].
///
/// # Examples
/// ```
/// use esker::{JobId, Repository};
///
/// let repository = Repository::create("memory:")?;
/// let job = repository.job(JobId::random());
/// std::thread::scope(|threads| {
///     for rank in 0..4 {
///         let job = job.clone();
///         threads.spawn(move || -> esker::Result<()> {
///             let part = job.part(rank).begin()?;
///             part.write(format!("/rank-{rank}"), "done")?;
///             part.complete().map(drop)
///         });
///     }
/// });
/// let report = job.publish("result")?;
/// assert_eq!((report.parts, report.conflicts.len()), (4, 0));
/// assert_eq!(repository.snapshot("result")?.entries("/")?.count(), 4);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    repository: Repository,
    id: JobId,
}

impl Job {
    pub(crate) fn new(repository: Repository, id: JobId) -> Self {
        Self { repository, id }
    }

    /// The id, which a job that starts again after a crash uses again.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }

    pub(crate) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Describes the part of `rank`. Unlike other sessions it is resumable at durability `Async`
    /// unless the caller chooses otherwise, and a part that is dropped stays until the job is given
    /// up.
    pub fn part(&self, rank: u32) -> SessionBuilder {
        SessionBuilder::new(&self.repository, Some((self.id, rank)))
    }

    /// Describes the job whose ranks write shared files: they talk to each other to find each
    /// other's bytes.
    pub fn share_files(&self) -> SharedJobBuilder {
        SharedJobBuilder::new(self.clone())
    }

    /// Returns the draft of an indexed directory that another process made
    /// ([`Session::draft_indexed`](crate::Session::draft_indexed)). No request.
    #[must_use]
    pub fn draft_indexed(
        &self,
        directory: SessionDirectory,
        format: ValueFormat,
        layout: RecordLayout,
    ) -> IndexedDraft {
        IndexedDraft::new(self.repository.sets.store().clone(), directory, format, layout)
    }

    /// Returns the parts that exist, by rank. Cost: a listing, and three requests for each part.
    ///
    /// # Errors
    /// `Corrupt` if a part cannot be read; errors of the store.
    pub fn parts(&self) -> Result<Vec<JobPart>> {
        self.repository.sets.parts(self.id)
    }

    /// Finds all parts and publishes them as the snapshot `name`. If parts changed one name
    /// differently, the change that its part made first wins, and among equals that of the lowest
    /// rank; the report has every such conflict. Survives power loss once it returns. Cost: as
    /// [`Job::parts`] and [`Job::publish_parts`].
    ///
    /// # Errors
    /// `NotFound` if there are no parts, `Invalid` if one is not complete: its rank still writes,
    /// or crashed and can resume it. As [`Job::publish_parts`].
    pub fn publish(&self, name: &str) -> Result<JobReport> {
        let parts = self.parts()?;
        if parts.is_empty() {
            let what = format!("job {} has no parts in {}", self.id, self.repository.store().url());
            return Err(Error::new(Kind::NotFound, what));
        }
        if let Some(part) = parts.iter().find(|part| !part.is_complete) {
            let what = format!("part @{} of rank {} is not complete", part.set, part.rank);
            return Err(Error::new(Kind::Invalid, what));
        }
        let sets: Vec<SetId> = parts.iter().map(|part| part.set).collect();
        self.publish_parts(&sets, name)
    }

    /// Publishes `parts`, in order of their ranks, for callers that have gathered their ids. Cost:
    /// a read of the parts' tables where their keys overlap, a small table and a commit; with
    /// conflicts also a scan of all directories.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Invalid` if a part is not complete, or builds on another.
    pub fn publish_parts(&self, parts: &[SetId], name: &str) -> Result<JobReport> {
        let writer = SessionBuilder::private_writer();
        self.repository.sets.publish_job_as(Some(&writer), parts, name, |_| Ok(()))
    }

    /// Gives up all parts: the next collection deletes them. Cost: as [`Job::parts`].
    ///
    /// # Errors
    /// As [`Job::parts`].
    pub fn abandon(&self) -> Result<()> {
        self.parts()?.iter().try_for_each(|part| self.repository.sets.abandon(part.set))
    }
}

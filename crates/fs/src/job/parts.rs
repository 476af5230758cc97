// SPDX-License-Identifier: Apache-2.0
//! Parts: the change sets that ranks of a job write; finding them and reopening them.
//!
//! A part has a claim, names its job and its rank in every manifest, and has a session's marker until
//! the job is published. The set that joins the parts names the job and no rank.

use std::collections::BTreeSet;

use esker_base::store::{Store, concurrent};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};

use super::JobId;
use super::claim::{self, PartClaim};
use crate::condemn::{self, DeletionPhase};
use crate::marker::{self, MarkerHolder};
use crate::names;
use crate::repository::Repository;
use crate::session::{Session, SessionOptions};

/// A part of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPart {
    /// The rank that writes it.
    pub rank: u32,
    /// Its change set.
    pub set: SetId,
    /// True if its writer completed it.
    pub is_complete: bool,
}

/// True if `set` joins the parts of `job`.
fn has_joined(store: &dyn Store, set: SetId, job: JobId) -> Result<bool> {
    match Manifest::load(store, set) {
        Ok(manifest) => Ok(!manifest.state.is_condemned() && joined_job(&manifest) == Some(job)),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The error of beginning a `part` that exists.
fn taken(claim: &PartClaim, part: &JobPart) -> Error {
    let PartClaim { job, rank, set } = claim;
    let state = if part.is_complete { ", which is complete" } else { "" };
    let what = format!(
        "job {job} has a part of rank {rank}{state}: go on with @{set}, drop it by `esker session \
         drop @{set}`, or choose another rank"
    );
    Error::new(Kind::Exists, what)
}

/// Returns the job whose parts the set of `manifest` joins, if it is such a set.
pub(crate) fn joined_job(manifest: &Manifest) -> Option<JobId> {
    let membership = manifest.job.filter(|membership| membership.rank.is_none())?;
    Some(JobId(membership.job))
}

impl Repository {
    /// Begins the part of rank `rank` of job `job` on top of `bases`, without communicating with
    /// other ranks: a session whose set records its job and rank. End it with
    /// [`Session::complete`]. Cost: as [`Repository::begin`], a write and a listing, and some
    /// requests for each earlier part of the rank that was given up.
    ///
    /// # Errors
    /// `Exists` if the job has a part of the rank; as [`Repository::begin`], `Conflict` also if
    /// another process begins that part at the same time.
    pub fn begin_part(
        &self,
        job: JobId,
        rank: u32,
        bases: &[SetId],
        options: SessionOptions,
    ) -> Result<Session> {
        let claim = PartClaim { job, rank, set: self.draw_set_id() };
        claim.put(&**self.store())?;
        let membership = JobMembership { job: job.0, rank: Some(rank) };
        let begin = |()| self.begin_as(claim.set, Some(membership), bases, options);
        self.check_claim(&claim).and_then(begin).map_err(|error| {
            // The next collection removes it otherwise.
            let _ = claim.remove(&**self.store());
            if !condemn::is_doomed(&**self.store(), claim.set) {
                return error;
            }
            let what = "another process began it at the same time; try again";
            Error::new(Kind::Conflict, format!("the part of rank {rank} of job {job}: {what}"))
        })
    }

    /// Fails if the set of another claim is the part of the same rank, and keeps sets that have not
    /// begun from becoming it.
    fn check_claim(&self, claim: &PartClaim) -> Result<()> {
        let store = &**self.store();
        for other in claim.others(store)? {
            let has_begun = match Manifest::newest_number(store, other.set) {
                Err(error) if error.kind() == Kind::NotFound => {
                    !condemn::doom_missing(store, other.set, self.clock().now_ns())?
                }
                number => number.map(|_| true)?,
            };
            if has_begun && let Some(part) = self.part_of(&other)? {
                return Err(taken(&other, &part));
            }
        }
        Ok(())
    }

    /// Returns the parts of `job`, by rank, except those that were given up. Cost: a listing, and
    /// three or four requests for each part.
    ///
    /// # Errors
    /// `Corrupt` if a part cannot be read; errors of the store.
    pub fn parts(&self, job: JobId) -> Result<Vec<JobPart>> {
        let store = &**self.store();
        let claims = claim::of_job(store, job)?;
        let parts = concurrent::try_map(store, &claims, |claim| self.part_of(claim))?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Returns the part that `claim` stands for, unless it was given up or has not begun.
    fn part_of(&self, claim: &PartClaim) -> Result<Option<JobPart>> {
        let store = &**self.store();
        let PartClaim { job, rank, set } = *claim;
        let manifest = match Manifest::load(store, set) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::TooLarge) => {
                // Without a session's marker it was given up.
                if !marker::is_held(store, set, &MarkerHolder::Session)? {
                    return Ok(None);
                }
                return Err(error.within(format!(
                    "@{set} is the part of rank {rank} of job {job} and cannot be read; to publish \
                     the job without it, give it up with `esker session drop @{set}`"
                )));
            }
            loaded => loaded?,
        };
        let membership = JobMembership { job: job.0, rank: Some(rank) };
        if manifest.job != Some(membership) || manifest.state.is_condemned() {
            return Ok(None);
        }
        // A part that was given up stays until it is collected, and longer below a snapshot of it.
        for holder in marker::holders(store, set)? {
            let is_kept = match holder {
                MarkerHolder::Session => true,
                MarkerHolder::Name(name) => names::stands_for(store, &name, set)?,
                MarkerHolder::Set(other) => has_joined(store, other, job)?,
                MarkerHolder::Data(_)
                | MarkerHolder::Former { .. }
                | MarkerHolder::Reader { .. } => false,
            };
            if is_kept {
                let is_complete = manifest.state == SetState::Sealed;
                return Ok(Some(JobPart { rank, set, is_complete }));
            }
        }
        Ok(None)
    }

    /// Reopens the complete parts of `job`, whose ranks ended before the job was published, and
    /// returns all of its parts; continue them with [`Repository::resume`]. Discards the leftovers
    /// of an unfinished join, and stops its writer if it is still running. Cost: as
    /// [`Repository::parts`], and some requests for each complete part.
    ///
    /// # Errors
    /// `Invalid` if parts were joined, have names, or are bases of other sets; as
    /// [`Repository::parts`].
    pub fn reopen_parts(&self, job: JobId) -> Result<Vec<JobPart>> {
        let mut parts = self.parts(job)?;
        for part in parts.iter_mut().filter(|part| part.is_complete) {
            self.reopen_part(job, part.set)?;
            part.is_complete = false;
        }
        Ok(parts)
    }

    fn reopen_part(&self, job: JobId, part: SetId) -> Result<()> {
        let store = &**self.store();
        self.check_not_joined(job, part)?;
        let mut manifest = condemn::load_live(store, part)?;
        if manifest.state == SetState::Open {
            return Ok(());
        }
        manifest.state = SetState::Open;
        manifest.epoch += 1;
        manifest.claim(store, part, self.clock().now_ns())?;
        // A publisher that had named it, or a collector, may still remove its former marker: see
        // `release_session`.
        marker::hold(store, part, &MarkerHolder::Session)?;
        // A set that builds on it put a marker before reading that it was complete; a publisher
        // that names it reads its state again after the name.
        self.check_not_joined(job, part).inspect_err(|_| {
            manifest.state = SetState::Sealed;
            // If this fails, the part stays open and can be completed.
            let _ = manifest.commit(store, part, self.clock().now_ns());
        })
    }

    /// Fails if `part` has a name, or another set shows or builds on it; discards an unfinished
    /// join.
    fn check_not_joined(&self, job: JobId, part: SetId) -> Result<()> {
        let store = &**self.store();
        for holder in marker::holders(store, part)? {
            if let MarkerHolder::Name(name) = &holder
                && names::stands_for(store, name, part)?
            {
                let what = format!("part @{part} of job {job} is published as {name}");
                return Err(Error::new(Kind::Invalid, what));
            }
            let MarkerHolder::Set(other) = holder else { continue };
            let manifest = match Manifest::load(store, other) {
                Err(error) if error.kind() == Kind::NotFound => {
                    if condemn::doom_missing(store, other, self.clock().now_ns())? {
                        continue;
                    }
                    Manifest::load(store, other)?
                }
                loaded => loaded?,
            };
            if matches!(condemn::phase(&manifest), DeletionPhase::Doomed | DeletionPhase::DataOnly)
            {
                continue;
            }
            let is_joined = joined_job(&manifest) == Some(job);
            if is_joined && manifest.state == SetState::Open {
                marker::release(store, other, &MarkerHolder::Session)?;
                // It never had a name.
                let (stale, fence) = (BTreeSet::new(), |_: &str, _| Ok(false));
                condemn::doom(store, other, &stale, &fence, self.clock().now_ns())?;
                continue;
            }
            let what = match is_joined {
                true => format!("job {job} was joined as @{other}; publish that, or give it up"),
                false => format!("@{other} builds on part @{part} of job {job}"),
            };
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(())
    }
}

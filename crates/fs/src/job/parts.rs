// SPDX-License-Identifier: Apache-2.0
//! Parts: the change sets that ranks of a job write; finding them and reopening them.
//!
//! A part names its job and its rank in every manifest, and has a session's marker until the job is
//! published. The set that joins the parts names the job and no rank.

use std::collections::{BTreeSet, HashSet};

use esker_base::{Error, Kind, Result};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};

use super::JobId;
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

/// Returns the job whose parts the set of `manifest` joins, if it is such a set.
pub(crate) fn joined_job(manifest: &Manifest) -> Option<JobId> {
    let membership = manifest.job.filter(|membership| membership.rank.is_none())?;
    Some(JobId(membership.job))
}

impl Repository {
    /// Begins the part of rank `rank` of job `job` on top of `bases`, without communicating with
    /// other ranks: a session whose set records its job and rank. End it with
    /// [`Session::complete`].
    pub fn begin_part(
        &self,
        job: JobId,
        rank: u32,
        bases: &[SetId],
        options: SessionOptions,
    ) -> Result<Session> {
        let membership = JobMembership { job: job.0, rank: Some(rank) };
        self.begin_as(Some(membership), bases, options)
    }

    /// Returns the parts of `job`, by rank, except those that were given up. Cost: a read of every
    /// change set's manifest, and a listing of all markers.
    ///
    /// # Errors
    /// `Corrupt` if a set that may be a part cannot be read; errors of the store.
    pub fn parts(&self, job: JobId) -> Result<Vec<JobPart>> {
        let store = &**self.store();
        let (mut parts, mut joined) = (Vec::new(), HashSet::new());
        for set in self.sets()? {
            let manifest = match Manifest::load(store, set) {
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::TooLarge) => {
                    self.check_is_no_part(set, job, error)?;
                    continue;
                }
                loaded => loaded?,
            };
            let Some(membership) = manifest.job.filter(|membership| membership.job == job.0) else {
                continue;
            };
            if manifest.state.is_condemned() {
                continue;
            }
            let Some(rank) = membership.rank else {
                joined.insert(set);
                continue;
            };
            let is_complete = manifest.state == SetState::Sealed;
            parts.push(JobPart { rank, set, is_complete });
        }
        // A part that was given up stays until it is collected, and longer below a snapshot of it.
        let is_part: HashSet<SetId> = parts.iter().map(|part| part.set).collect();
        let mut held = HashSet::new();
        for marker in marker::all(store)? {
            let is_held = match marker.holder {
                MarkerHolder::Session => true,
                MarkerHolder::Name(name) if is_part.contains(&marker.set) => {
                    names::stands_for(store, &name, marker.set)?
                }
                MarkerHolder::Set(other) => joined.contains(&other),
                MarkerHolder::Name(_)
                | MarkerHolder::Data(_)
                | MarkerHolder::Former { .. }
                | MarkerHolder::Reader { .. } => false,
            };
            held.extend(is_held.then_some(marker.set));
        }
        parts.retain(|part| held.contains(&part.set));
        parts.sort_unstable_by_key(|part| (part.rank, part.set));
        Ok(parts)
    }

    /// Fails with `error`, because of which `set` cannot be read, if the set may be a part of
    /// `job`.
    fn check_is_no_part(&self, set: SetId, job: JobId, error: Error) -> Result<()> {
        let store = &**self.store();
        // Without a session's marker it is not a part, or was given up.
        if !marker::is_held(store, set, &MarkerHolder::Session)? {
            return Ok(());
        }
        // The manifest before the newest is kept, and names the same job.
        let before = Manifest::newest_number(store, set)?.saturating_sub(1);
        let what = match Manifest::load_number(store, set, before) {
            Ok(manifest) => match manifest.job {
                Some(JobMembership { job: id, rank: Some(rank) }) if id == job.0 => {
                    format!("@{set} is the part of rank {rank}")
                }
                _ => return Ok(()),
            },
            Err(_) => format!("@{set} may be a part"),
        };
        Err(error.within(format!(
            "{what} of job {job} and cannot be read; to publish the job without it, give it up \
             with `esker session drop @{set}`"
        )))
    }

    /// Reopens the complete parts of `job`, whose ranks ended before the job was published, and
    /// returns all of its parts; continue them with [`Repository::resume`]. Discards the leftovers
    /// of an unfinished join, and stops its writer if it is still running. Cost: a read of every
    /// change set's manifest, and some requests for each complete part.
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

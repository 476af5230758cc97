// SPDX-License-Identifier: Apache-2.0
//! Parts: the change sets that ranks of a job write; finding them and reopening them.
//!
//! A part has a claim, names its job and its rank in every manifest, and has a session's marker until
//! the job is published. The set that joins the parts names the job and no rank.

use std::collections::BTreeSet;

use esker_base::store::{Store, concurrent};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};
use hashbrown::HashMap;
use parking_lot::Mutex;

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

/// Sets that hold parts of one job, and whether each is what joins them.
#[derive(Default)]
struct Joins(Mutex<HashMap<SetId, bool>>);

impl Joins {
    /// True if `set`, which holds that of `claim`, joins the parts of its job.
    fn have(&self, store: &dyn Store, set: SetId, claim: &PartClaim) -> Result<bool> {
        if let Some(known) = self.0.lock().get(&set) {
            return Ok(*known);
        }
        let joins = |manifest: &Manifest| joined_job(manifest) == Some(claim.job);
        let is_join = match Manifest::load(store, set) {
            Ok(manifest) => !manifest.state.is_condemned() && joins(&manifest),
            Err(error) if error.kind() == Kind::NotFound => false,
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::TooLarge) => {
                // The manifest before the newest is kept, and names the same job. A set without one
                // has not joined parts yet, which takes two.
                let before = Manifest::newest_number(store, set)?.saturating_sub(1);
                let known = Manifest::load_number(store, set, before);
                if before > 0 && known.as_ref().map_or(true, joins) {
                    let PartClaim { job, rank, .. } = claim;
                    return Err(error.within(format!(
                        "@{set} may have joined job {job}, since it holds the part of rank {rank}, \
                         and cannot be read; delete its names, and collect it with `esker gc`"
                    )));
                }
                false
            }
            Err(error) => return Err(error),
        };
        self.0.lock().insert(set, is_join);
        Ok(is_join)
    }
}

/// The error of beginning a `part` that exists because of `holder`.
fn taken(claim: &PartClaim, part: &JobPart, holder: &MarkerHolder) -> Error {
    let PartClaim { job, rank, set } = claim;
    let state = match holder {
        MarkerHolder::Name(name) => format!(", published as {name}; choose another rank or job"),
        MarkerHolder::Set(other) => format!(", which @{other} has joined; choose another job"),
        _ => {
            let state = if part.is_complete { ", which is complete" } else { "" };
            format!(
                "{state}: go on with @{set}, drop it by `esker session drop @{set}`, or choose \
                 another rank"
            )
        }
    };
    Error::new(Kind::Exists, format!("job {job} has a part of rank {rank}{state}"))
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
        let store = &**self.store();
        let claim = PartClaim { job, rank, set: self.draw_set_id() };
        claim.put(store)?;
        if let Err(error) = self.check_claim(&claim) {
            // The next collection removes it otherwise.
            let _ = claim.remove(store);
            return Err(error);
        }
        let membership = JobMembership { job: job.0, rank: Some(rank) };
        let begun = self.begin_as(claim.set, Some(membership), bases, options);
        // A set that may have begun nevertheless keeps its claim, until a collection dooms it.
        begun.map_err(|error| {
            if !condemn::is_doomed(store, claim.set) {
                return error;
            }
            let _ = claim.remove(store);
            let what = "another process began it, or a collection ran, at the same time; try again";
            Error::new(Kind::Conflict, format!("the part of rank {rank} of job {job}: {what}"))
        })
    }

    /// Makes `set`, which has just become a part again, the only one of its rank: keeps sets that have
    /// not begun from becoming another. Does nothing for a set that is no part of a job.
    ///
    /// # Errors
    /// `Exists` if another has begun; errors of the store.
    pub(crate) fn keep_only_part(&self, set: SetId, manifest: &Manifest) -> Result<()> {
        match manifest.job {
            Some(JobMembership { job, rank: Some(rank) }) => {
                self.check_claim(&PartClaim { job: JobId(job), rank, set })
            }
            _ => Ok(()),
        }
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
            if has_begun && let Some((part, holder)) = self.part_of(&other, &Joins::default())? {
                return Err(taken(&other, &part, &holder));
            }
        }
        Ok(())
    }

    /// Returns the parts of `job`, by rank, except those that were given up. Cost: a listing, and
    /// three requests for each part; for a joined job also two for the set that joins its parts.
    ///
    /// # Errors
    /// `Corrupt` if a part cannot be read; errors of the store.
    pub fn parts(&self, job: JobId) -> Result<Vec<JobPart>> {
        let store = &**self.store();
        let (claims, joins) = (claim::of_job(store, job)?, Joins::default());
        let parts = concurrent::try_map(store, &claims, |claim| self.part_of(claim, &joins))?;
        Ok(parts.into_iter().flatten().map(|(part, _)| part).collect())
    }

    /// Returns the part that `claim` stands for, unless it was given up or has not begun, and a
    /// holder because of which it is one.
    fn part_of(&self, claim: &PartClaim, joins: &Joins) -> Result<Option<(JobPart, MarkerHolder)>> {
        let store = &**self.store();
        let PartClaim { job, rank, set } = *claim;
        let part = match Manifest::load(store, set) {
            Ok(manifest) => {
                let membership = JobMembership { job: job.0, rank: Some(rank) };
                let may_be_one = manifest.job == Some(membership)
                    // A condemned set that is held is restored when it is used.
                    && matches!(
                        condemn::phase(&manifest),
                        DeletionPhase::Live | DeletionPhase::Condemned
                    );
                if !may_be_one {
                    return Ok(None);
                }
                let is_complete =
                    matches!(manifest.state, SetState::Sealed | SetState::CondemnedSealed);
                Ok(JobPart { rank, set, is_complete })
            }
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(damage) if matches!(damage.kind(), Kind::Corrupt | Kind::TooLarge) => Err(damage),
            Err(error) => return Err(error),
        };
        // A name may move from one marker to another between the listing and the question for
        // which set it stands, so an answer of "none" takes two.
        let holder = match self.holder_of_part(claim, joins)? {
            None => self.holder_of_part(claim, joins)?,
            holder => holder,
        };
        let Some(holder) = holder else { return Ok(None) };
        let part = part.map_err(|error| {
            error.within(format!(
                "@{set} is the part of rank {rank} of job {job} and cannot be read; to publish the \
                 job without it, give it up with `esker session drop @{set}`"
            ))
        });
        Ok(Some((part?, holder)))
    }

    /// Returns a holder that makes the set of `claim` a part. A part that was given up stays until
    /// it is collected, and longer below a snapshot of it.
    fn holder_of_part(&self, claim: &PartClaim, joins: &Joins) -> Result<Option<MarkerHolder>> {
        let (store, set) = (&**self.store(), claim.set);
        let mut holders = marker::holders(store, set)?;
        // Nothing has to be read for the marker of a session.
        holders.sort_by_key(|holder| *holder != MarkerHolder::Session);
        for holder in holders {
            let is_kept = match &holder {
                MarkerHolder::Session => true,
                MarkerHolder::Name(name) => names::stands_for(store, name, set)?,
                MarkerHolder::Set(other) => joins.have(store, *other, claim)?,
                MarkerHolder::Data(_)
                | MarkerHolder::Former { .. }
                | MarkerHolder::Live(_)
                | MarkerHolder::Reader { .. } => false,
            };
            if is_kept {
                return Ok(Some(holder));
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

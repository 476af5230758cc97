//! Parts: the change sets that ranks of a job write, found again and gone on with.
//!
//! A part names its job and its rank in every manifest, and has a session's marker until the job is
//! published. The set in which parts are joined names the job and no rank.

use std::collections::{BTreeSet, HashSet};

use esker_base::{Error, Kind, Result};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};

use super::JobId;
use crate::condemn::{self, Phase};
use crate::marker::{self, Holder};
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
    /// Whether its writer completed it.
    pub is_complete: bool,
}

/// The job whose parts the set of `manifest` joins, if it is such a set.
pub(crate) fn joined_job(manifest: &Manifest) -> Option<JobId> {
    let membership = manifest.job.filter(|membership| membership.rank.is_none())?;
    Some(JobId(membership.job))
}

impl Repository {
    /// Begins the part of rank `rank` of job `job` on top of `bases`, without asking other ranks:
    /// a session whose set says what it belongs to. End it with [`Session::complete`].
    ///
    /// # Errors
    /// As [`Repository::begin`].
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

    /// The parts of `job`, by rank, but for those that were given up. Cost: a look at every change set
    /// of the store, and a listing of all markers.
    ///
    /// # Errors
    /// `Corrupt` if a set that may be a part cannot be read; what the store reports.
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
            let is_complete = manifest.state == SetState::Published;
            parts.push(JobPart { rank, set, is_complete });
        }
        // One that was given up stays until it is collected, and longer below a snapshot of it.
        let is_part: HashSet<SetId> = parts.iter().map(|part| part.set).collect();
        let mut held = HashSet::new();
        for marker in marker::all(store)? {
            let is_held = match marker.holder {
                Holder::Session => true,
                Holder::Name(name) if is_part.contains(&marker.set) => {
                    names::stands_for(store, &name, marker.set)?
                }
                Holder::Set(other) => joined.contains(&other),
                Holder::Name(_)
                | Holder::Data(_)
                | Holder::Former { .. }
                | Holder::Reader { .. } => false,
            };
            held.extend(is_held.then_some(marker.set));
        }
        parts.retain(|part| held.contains(&part.set));
        parts.sort_unstable_by_key(|part| (part.rank, part.set));
        Ok(parts)
    }

    /// Fails with `error`, for which `set` cannot be read, if the set may be a part of `job`.
    fn check_is_no_part(&self, set: SetId, job: JobId, error: Error) -> Result<()> {
        let store = &**self.store();
        // Without a session it is no part, or one that was given up.
        if !marker::is_held(store, set, &Holder::Session)? {
            return Ok(());
        }
        // The manifest before the newest stays, and says the same of this.
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
            "{what} of job {job} and cannot be read; to publish the job without it, give it up by \
             `esker session drop @{set}`"
        )))
    }

    /// Opens the complete parts of `job` again, whose ranks ended before they had published it, and
    /// returns all of its parts: [`Repository::resume`] goes on with them. What an unfinished
    /// joining of them left is given up, and its writer, should it still be there, stops. Cost: a
    /// look at every change set, and some requests for each complete part.
    ///
    /// # Errors
    /// `Invalid` if parts were joined, have names, or others build on them; as [`Repository::parts`].
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
        // A publisher that had named it, or a collector, may take the marker away that it had: see
        // `release_session`.
        marker::hold(store, part, &Holder::Session)?;
        // Whoever builds on it put a marker before reading that it was complete; whoever names it reads
        // so once more behind the name.
        self.check_not_joined(job, part).inspect_err(|_| {
            manifest.state = SetState::Published;
            // If this fails it is an open part, which can be completed.
            let _ = manifest.commit(store, part, self.clock().now_ns());
        })
    }

    /// Fails if `part` has a name, or another set shows or builds on it; gives up one that began to and
    /// did not end.
    fn check_not_joined(&self, job: JobId, part: SetId) -> Result<()> {
        let store = &**self.store();
        for holder in marker::holders(store, part)? {
            if let Holder::Name(name) = &holder
                && names::stands_for(store, name, part)?
            {
                let what = format!("part @{part} of job {job} is published as {name}");
                return Err(Error::new(Kind::Invalid, what));
            }
            let Holder::Set(other) = holder else { continue };
            let manifest = match Manifest::load(store, other) {
                Err(error) if error.kind() == Kind::NotFound => {
                    if condemn::doom_missing(store, other, self.clock().now_ns())? {
                        continue;
                    }
                    Manifest::load(store, other)?
                }
                loaded => loaded?,
            };
            if matches!(condemn::phase(&manifest), Phase::Doomed | Phase::DataOnly) {
                continue;
            }
            let is_joined = joined_job(&manifest) == Some(job);
            if is_joined && manifest.state == SetState::Open {
                marker::release(store, other, &Holder::Session)?;
                condemn::doom(store, other, &BTreeSet::new(), self.clock().now_ns())?;
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

//! Parts: the change sets that ranks of a job write, found again and gone on with.
//!
//! A part names its job and its rank in every manifest, and has a session's marker until the job is
//! published. The set in which parts are joined names the job and no rank.

use std::collections::BTreeSet;

use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};

use super::JobId;
use crate::condemn::{self, Phase};
use crate::marker::{self, Holder};
use crate::names;
use crate::repository::Repository;
use crate::session::{Session, SessionOptions};

/// Property of a part that names its job.
pub const JOB: &str = "esker.job";
/// Property of a part that gives its rank.
pub const RANK: &str = "esker.rank";

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
pub(crate) fn joined_job(manifest: &Manifest) -> Option<&str> {
    let job = manifest.properties.get(JOB)?;
    (!manifest.properties.contains_key(RANK)).then_some(job)
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
        mut options: SessionOptions,
    ) -> Result<Session> {
        options.properties.insert(JOB.into(), job.to_string());
        options.properties.insert(RANK.into(), rank.to_string());
        self.begin(bases, options)
    }

    /// The parts of `job`, by rank. Cost: a look at every change set of the store.
    ///
    /// # Errors
    /// `Corrupt` if a set that may be a part cannot be read; what the store reports.
    pub fn parts(&self, job: JobId) -> Result<Vec<JobPart>> {
        let store = &**self.store();
        let mut parts = Vec::new();
        for set in self.sets()? {
            let manifest = match Manifest::load(store, set) {
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::TooLarge) => {
                    self.check_is_no_part(set, job, error)?;
                    continue;
                }
                loaded => loaded?,
            };
            let is_part = manifest.properties.get(JOB).is_some_and(|id| *id == job.to_string());
            let rank = manifest.properties.get(RANK).and_then(|rank| rank.parse().ok());
            if let Some(rank) = rank.filter(|_| is_part)
                && manifest.state != SetState::Condemned
            {
                let is_complete = manifest.state == SetState::Published;
                parts.push(JobPart { rank, set, is_complete });
            }
        }
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
            Ok(manifest) => match manifest.properties.get(JOB) {
                Some(id) if *id == job.to_string() => {
                    let rank = manifest.properties.get(RANK).map_or("?", String::as_str);
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
            if condemn::phase(&manifest) == Phase::Doomed {
                continue;
            }
            let is_joined = joined_job(&manifest).is_some_and(|id| *id == job.to_string());
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

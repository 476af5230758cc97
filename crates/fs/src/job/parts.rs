// SPDX-License-Identifier: Apache-2.0
//! Parts: the change sets that ranks of a job write; finding them and reopening them.
//!
//! A part has a claim, names its job and its rank in every manifest, and has a session's marker
//! until the job is published. The set that joins the parts names the job and no rank.

use std::collections::BTreeSet;

use esker_base::store::{Store, concurrent};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::JobId;
use super::claim::{self, PartClaim};
use crate::names;
use crate::repository::{Repository, best_effort, given_up};
use crate::retention::condemn::{self, CondemnVerdict, DeletionPhase, TRIES_MAX};
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::retention::session_marker;
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

/// Sets that hold parts of one job, and whether each joins them.
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
            Ok(manifest) => condemn::phase(&manifest) == DeletionPhase::Live && joins(&manifest),
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
            let go_on = match part.is_complete {
                true => ", which is complete: to write it again, drop".to_owned(),
                false => format!(": go on with @{set} (a mount: --resume), or drop"),
            };
            format!("{go_on} it by `esker session drop @{set}`; or choose another rank")
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
    /// requests for each earlier part of the rank that was given up, and for a join of it that was.
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
            let is_lost = condemn::is_race(&error)
                || matches!(error.kind(), Kind::NotFound | Kind::Exists | Kind::Closed);
            if !is_lost {
                return error;
            }
            let what = "another process began it, or a collection ran, at the same time; try again";
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
            while has_begun && let Some((part, holder)) = self.part_of(&other, &Joins::default())? {
                if !self.is_discarded_join(&holder)? {
                    return Err(taken(&other, &part, &holder));
                }
            }
        }
        Ok(())
    }

    /// True if `holder` is a join that was given up, and that this call has discarded.
    fn is_discarded_join(&self, holder: &MarkerHolder) -> Result<bool> {
        let MarkerHolder::Set(join) = *holder else { return Ok(false) };
        let is_given_up =
            Manifest::load(&**self.store(), join).is_ok_and(|manifest| manifest.is_given_up);
        Ok(is_given_up && self.discard_join(join)?)
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

    /// Gives up all parts of `job`. Cost: as [`Repository::parts`], and [`Repository::abandon`] for
    /// each.
    ///
    /// # Errors
    /// As these.
    pub fn abandon_parts(&self, job: JobId) -> Result<()> {
        self.parts(job)?.iter().try_for_each(|part| self.abandon(part.set))
    }

    /// Returns the part that `claim` stands for, unless it was given up or has not begun, and a
    /// holder because of which it is one.
    fn part_of(&self, claim: &PartClaim, joins: &Joins) -> Result<Option<(JobPart, MarkerHolder)>> {
        let store = &**self.store();
        let PartClaim { job, rank, set } = *claim;
        let mut is_given_up = false;
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
                is_given_up = manifest.is_given_up;
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
        let holder = match self.holder_of_part(claim, is_given_up, joins)? {
            None => self.holder_of_part(claim, is_given_up, joins)?,
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
    fn holder_of_part(
        &self,
        claim: &PartClaim,
        is_given_up: bool,
        joins: &Joins,
    ) -> Result<Option<MarkerHolder>> {
        let (store, set) = (&**self.store(), claim.set);
        let mut holders = marker::holders(store, set)?;
        // Nothing has to be read for the marker of a session.
        holders.sort_by_key(|holder| !holder.is_session());
        for holder in holders {
            let is_kept = match &holder {
                MarkerHolder::Session | MarkerHolder::Reopened { .. } => !is_given_up,
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
    /// of an unfinished join, and stops its writer if it is still running; also a join that was given
    /// up, unless a name or a reader holds it. Cost: as
    /// [`Repository::parts`], and for each complete part a marker, two commits, two listings, and a
    /// put for each name that it has lost.
    ///
    /// # Errors
    /// `Invalid` if parts were joined, have names, or are bases of other sets; `Conflict` if a part
    /// keeps changing; `NotFound` if it is given up at the same time, `Exists` if its rank then
    /// begins another; as [`Repository::parts`].
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
        for _ in 0..TRIES_MAX {
            self.check_unused(job, part, &|name| names::stands_for(store, name, part))?;
            let manifest = condemn::load_live(store, part)?;
            if manifest.is_given_up {
                return Err(given_up(part));
            }
            if manifest.state == SetState::Open {
                return Ok(());
            }
            let rank = manifest.job.and_then(|membership| membership.rank);
            let claim = rank.map(|rank| PartClaim { job, rank, set: part });
            let id = self.draw_set_id().0 as u64;
            let own = MarkerHolder::Reopened { epoch: manifest.epoch + 1, id };
            let mut markers = ProvisionalMarkers::new(store);
            markers.hold(part, own)?;
            match self.reopen_under((job, part), claim, manifest, markers) {
                Err(error) if condemn::is_race(&error) => {}
                reopened => return reopened,
            }
        }
        Err(Error::new(
            Kind::Conflict,
            format!("part @{part} of job {job} keeps changing; try again"),
        ))
    }

    /// Reopens the complete `part`, of `manifest`, under its `markers`. It is condemned while
    /// names and other sets are looked for, so a process that names it or builds on it either is
    /// found, or finds it condemned and restores it: then the second commit fails.
    fn reopen_under(
        &self,
        (job, part): (JobId, SetId),
        claim: Option<PartClaim>,
        mut manifest: Manifest,
        markers: ProvisionalMarkers<'_>,
    ) -> Result<()> {
        let (store, clock) = (&**self.store(), &**self.clock());
        manifest.state = SetState::CondemnedSealed;
        manifest.epoch += 1;
        let markers = markers.committed(manifest.claim(store, part, clock.now_ns()))?;
        let fence = |name: &str| names::fence_publications(store, clock, name, part);
        let unused = self
            .check_unused(job, part, &fence)
            // Its rank may have begun another part while it was one by a name only.
            .and_then(|()| claim.map_or(Ok(()), |claim| self.check_claim(&claim)));
        manifest.state = if unused.is_ok() { SetState::Open } else { SetState::Sealed };
        manifest.epoch += 1;
        let committed = self.with_reserve(|| manifest.claim(store, part, clock.now_ns()));
        // If the commit failed, the next user of the part restores it, without the marker.
        unused?;
        // The part may be open now even if the commit reports a failure, so the marker stays; it is
        // removed with those of the session.
        markers.keep();
        committed
    }

    /// Fails if `part` has a name, of which `stands_for` decides, or another set shows or builds on
    /// it; discards an unfinished join.
    fn check_unused(
        &self,
        job: JobId,
        part: SetId,
        stands_for: &dyn Fn(&str) -> Result<bool>,
    ) -> Result<()> {
        for holder in marker::holders(&**self.store(), part)? {
            let what = match &holder {
                MarkerHolder::Name(name) if stands_for(name)? => {
                    Some(format!("part @{part} of job {job} is published as {name}"))
                }
                MarkerHolder::Set(other) => match self.use_of_part(job, *other)? {
                    PartUse::None => None,
                    PartUse::Joined => Some(format!(
                        "job {job} was joined as @{other}; publish that, or give it up"
                    )),
                    PartUse::GivenUp => Some(format!(
                        "job {job} was joined as @{other}, which was given up and is still in use, by \
                         a name, by readers, or for the grace of a deleted name"
                    )),
                    PartUse::Base => Some(format!("@{other} builds on part @{part} of job {job}")),
                },
                _ => None,
            };
            if let Some(what) = what {
                return Err(Error::new(Kind::Invalid, what));
            }
        }
        Ok(())
    }

    /// Returns how `other`, which has put a marker on a part of `job`, uses it. Discards an
    /// unfinished join, one that was given up and is not in use, and a set that has not begun.
    fn use_of_part(&self, job: JobId, other: SetId) -> Result<PartUse> {
        let (store, now_ns) = (&**self.store(), self.clock().now_ns());
        for _ in 0..TRIES_MAX {
            let mut manifest = match Manifest::load(store, other) {
                Err(error) if error.kind() == Kind::NotFound => {
                    if condemn::doom_missing(store, other, now_ns)? {
                        return Ok(PartUse::None);
                    }
                    continue;
                }
                loaded => loaded?,
            };
            let phase = condemn::phase(&manifest);
            if matches!(phase, DeletionPhase::Doomed | DeletionPhase::DataOnly) {
                return Ok(PartUse::None);
            }
            if joined_job(&manifest) != Some(job) {
                return Ok(PartUse::Base);
            }
            if !matches!(manifest.state, SetState::Open | SetState::CondemnedOpen) {
                return Ok(match manifest.is_given_up {
                    true if self.discard_join(other)? => PartUse::None,
                    true => PartUse::GivenUp,
                    false => PartUse::Joined,
                });
            }
            // No process has used it but its writer, which is then fenced.
            if condemn::doom_now(&mut manifest, store, other, now_ns)? {
                best_effort(marker::release(store, other, &MarkerHolder::Session))?;
                return Ok(PartUse::None);
            }
        }
        Err(Error::new(Kind::Conflict, format!("change set {other} keeps changing; try again")))
    }

    /// Dooms `join`, a complete join that was given up, as a collection does; false if it is in use.
    fn discard_join(&self, join: SetId) -> Result<bool> {
        let (store, clock) = (&**self.store(), &**self.clock());
        // The process that gave it up may have died before it removed them.
        session_marker::release_given_up(store, join)?;
        let fence = |name: &str, _| names::fence_publications(store, clock, name, join);
        for _ in 0..TRIES_MAX {
            let (mut stale, mut is_in_use) = (BTreeSet::new(), false);
            for holder in marker::holders(store, join)? {
                match &holder {
                    MarkerHolder::Name(name) if !names::stands_for(store, name, join)? => {
                        stale.insert(holder);
                    }
                    _ => is_in_use |= holder.keeps_tables(),
                }
            }
            if is_in_use {
                return Ok(false);
            }
            match condemn::doom(store, join, &stale, &fence, clock.now_ns())? {
                // It has come into use, or another process has committed to it.
                CondemnVerdict::Kept => {}
                CondemnVerdict::Doomed(_)
                | CondemnVerdict::DataOnly { .. }
                | CondemnVerdict::Gone => return Ok(true),
            }
        }
        Err(Error::new(Kind::Conflict, format!("change set {join} keeps changing; try again")))
    }
}

/// Use of a part by a set that has a marker on it.
enum PartUse {
    /// Not at all: it is being deleted or never began.
    None,
    /// It joins the parts of the job.
    Joined,
    /// It joins the parts of the job, was given up, and is kept nevertheless.
    GivenUp,
    /// It shows the part or builds on it.
    Base,
}

// SPDX-License-Identifier: Apache-2.0
//! Claims: `part/<job>/<rank>/<set>`, an empty object for each set that is to be a part.
//!
//! They make the parts of a job one listing instead of a search of the whole store, and keep two
//! processes from beginning the part of one rank. A process puts its claim before it begins the
//! set, and then lists the claims of the rank. If another of these sets is a part, it gives way; if
//! another has not begun, it dooms that set. At most one of two processes therefore begins. A
//! process that reopens a part lists them, too, before the part is open: its rank may have begun
//! another one meanwhile.
//! Invariant: the claim of a part exists before the part, until the part is doomed. A process that
//! stands still for more than a day between the two can begin a set that is no part.

use esker_base::store::{ObjectInfo, Store};
use esker_base::{Kind, Result};
use esker_table::manifest::SetId;

use super::JobId;

const FOLDER: &str = "part/";

/// A set that is to be a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartClaim {
    /// Its job.
    pub job: JobId,
    /// The rank that writes it.
    pub rank: u32,
    /// The set.
    pub set: SetId,
}

impl PartClaim {
    fn object(&self) -> String {
        format!("{}{}", rank_folder(self.job, self.rank), self.set)
    }

    fn parse(object: &str) -> Option<Self> {
        let mut words = object.strip_prefix(FOLDER)?.split('/');
        let (job, rank, set) = (words.next()?, words.next()?, words.next()?);
        let rank = u32::from_str_radix(rank, 16).ok()?;
        let claim = Self { job: job.parse().ok()?, rank, set: set.parse().ok()? };
        (claim.object() == object).then_some(claim)
    }

    /// Puts the claim. Cost: one write.
    pub fn put(&self, store: &dyn Store) -> Result<()> {
        match store.put_if_absent(&self.object(), b"") {
            Err(error) if error.kind() == Kind::Exists => Ok(()),
            put => put,
        }
    }

    /// Removes the claim if it exists. Cost: one request.
    pub fn remove(&self, store: &dyn Store) -> Result<()> {
        store.delete(&self.object())
    }

    /// Returns the other claims of the same rank. Cost: one listing.
    pub fn others(&self, store: &dyn Store) -> Result<Vec<Self>> {
        let names = store.list_names(&rank_folder(self.job, self.rank))?;
        let sets = names.iter().filter_map(|name| name.parse().ok());
        Ok(sets.filter(|set| *set != self.set).map(|set| Self { set, ..*self }).collect())
    }
}

fn job_folder(job: JobId) -> String {
    format!("{FOLDER}{job}/")
}

fn rank_folder(job: JobId, rank: u32) -> String {
    format!("{}{rank:08x}/", job_folder(job))
}

/// Returns the claims of `job`, by rank. Cost: one listing.
pub(super) fn of_job(store: &dyn Store, job: JobId) -> Result<Vec<PartClaim>> {
    let objects = store.list(&job_folder(job))?;
    Ok(objects.iter().filter_map(|object| PartClaim::parse(&object.name)).collect())
}

/// Returns every claim of the store, with the time when it was put, in nanoseconds since the Unix
/// epoch, by the store's clock. Cost: one listing.
pub(crate) fn all(store: &dyn Store) -> Result<Vec<(PartClaim, u64)>> {
    let parse = |object: &ObjectInfo| Some((PartClaim::parse(&object.name)?, object.modified_ns));
    Ok(store.list(FOLDER)?.iter().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use esker_base::store;

    use super::*;

    #[test]
    fn claims_come_back() {
        let claim = PartClaim { job: JobId(5), rank: u32::MAX, set: SetId(7) };
        let object = claim.object();
        store::name::check(&object).expect("short enough");
        assert_eq!(PartClaim::parse(&object), Some(claim));
        for other in
            ["part/", "part/5/0/7", &format!("{object}/x"), &object.replace("ffffffff", "+1")]
        {
            assert_eq!(PartClaim::parse(other), None, "{other}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Job membership: the job of several writers to which a change set belongs.
//!
//! Layout: docs/format/manifest.md. This file is its only encoder and decoder.

use esker_base::wire::{WireDamage, WireInput};

/// The set is not part of a job.
const NONE: u8 = 0;
/// The set is a part, which one rank writes.
const PART: u8 = 1;
/// The set joins the parts.
const JOINED: u8 = 2;

/// The job of several writers to which a change set belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobMembership {
    /// The job's identity.
    pub job: u128,
    /// The rank that writes the set; `None` if the set joins the parts of all ranks.
    pub rank: Option<u32>,
}

pub(super) fn encode_job(job: Option<JobMembership>, out: &mut Vec<u8>) {
    let Some(JobMembership { job, rank }) = job else { return out.push(NONE) };
    out.push(if rank.is_some() { PART } else { JOINED });
    out.extend_from_slice(&job.to_le_bytes());
    if let Some(rank) = rank {
        out.extend_from_slice(&rank.to_le_bytes());
    }
}

pub(super) fn decode_job(input: &mut WireInput) -> Result<Option<JobMembership>, WireDamage> {
    let kind = input.u8()?;
    Ok(match kind {
        NONE => None,
        PART => Some(JobMembership { job: input.u128()?, rank: Some(input.u32()?) }),
        JOINED => Some(JobMembership { job: input.u128()?, rank: None }),
        _ => return Err(input.damage("a known membership of a job")),
    })
}

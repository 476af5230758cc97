// SPDX-License-Identifier: Apache-2.0
//! Load marker: a target's record of the data of a replay that it has.
//!
//! The marker is made before the data, names the plan, and becomes complete when all of the data is
//! durable. The marker thus tells an interrupted load from a finished one, and the data of one
//! trace from that of another. JSON: `{"format":"esker-replay","version":1,"plan":"<16 hex
//! digits>","is_complete":…}`.

use serde::{Deserialize, Serialize};

use super::ReplayPlan;

const FORMAT: &str = "esker-replay";
const VERSION: u32 = 1;

/// Bytes of a marker.
pub const LOAD_MARKER_BYTES_MAX: usize = 4_096;

/// Identifies the data that a plan needs: plans with the same digest read the same ranges under the
/// same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanDigest(pub u64);

/// The data of a replay at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// There is no data.
    Absent,
    /// A part of the data is there: a load was interrupted or is still running.
    Partial,
    /// All data that plans of this digest read is there.
    Complete(PlanDigest),
}

#[derive(Serialize, Deserialize)]
struct LoadMarker {
    format: String,
    version: u32,
    plan: String,
    is_complete: bool,
}

impl PlanDigest {
    /// The digest of `plan`.
    #[must_use]
    pub fn of(plan: &ReplayPlan) -> Self {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for file in &plan.files {
            for requests in [&file.read, &file.requests] {
                hash.update(&(requests.len() as u64).to_le_bytes());
                for (offset, bytes) in requests {
                    hash.update(&offset.to_le_bytes());
                    hash.update(&bytes.to_le_bytes());
                }
            }
        }
        Self(hash.digest())
    }
}

/// The marker of data that `plan` needs.
pub fn load_marker(plan: PlanDigest, is_complete: bool) -> Vec<u8> {
    let (format, plan) = (FORMAT.to_owned(), format!("{:016x}", plan.0));
    let marker = LoadMarker { format, version: VERSION, plan, is_complete };
    serde_json::to_vec(&marker).expect("words and numbers")
}

/// The state that a marker records; `None` for bytes that are not a marker of a replay.
pub fn load_state(marker: &[u8]) -> Option<LoadState> {
    let found: LoadMarker = serde_json::from_slice(marker).ok()?;
    if (found.format.as_str(), found.version) != (FORMAT, VERSION) {
        return None;
    }
    let plan = u64::from_str_radix(&found.plan, 16).ok()?;
    Some(match found.is_complete {
        true => LoadState::Complete(PlanDigest(plan)),
        false => LoadState::Partial,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_come_back_and_others_are_told() {
        let plan = PlanDigest(0x0123_4567_89ab_cdef);
        let complete = load_marker(plan, true);
        let text =
            r#"{"format":"esker-replay","version":1,"plan":"0123456789abcdef","is_complete":true}"#;
        assert_eq!(String::from_utf8_lossy(&complete), text);
        assert_eq!(load_state(&complete), Some(LoadState::Complete(plan)));
        assert_eq!(load_state(&load_marker(plan, false)), Some(LoadState::Partial));
        for end in 0..complete.len() {
            assert_eq!(load_state(&complete[..end]), None, "truncated at {end}");
        }
        for other in [text.replace("replay", "other"), text.replace(":1,", ":2,")] {
            assert_eq!(load_state(other.as_bytes()), None, "{other}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Load marker: a target's record of the data of a replay that it has.
//!
//! The marker is made before the data, names the plan, and becomes complete when all of the data is
//! durable. The marker thus tells an interrupted load from a finished one, and the data of one
//! trace from that of another. JSON: `{"format":"esker-replay","version":1,"plan":"<16 hex
//! digits>","is_complete":…,"files":…,"is_measured":…}`; earlier markers lack the last two.

use serde::{Deserialize, Serialize};

use super::ReplayPlan;

const FORMAT: &str = "esker-replay";

/// Begins every marker.
const BEGIN: &[u8] = br#"{"format":"esker-replay""#;

const VERSION: u32 = 1;

/// Bytes of a marker.
pub const LOAD_MARKER_BYTES_MAX: usize = 4_096;

/// Identifies the data that a plan needs: plans with the same digest read the same ranges under the
/// same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanDigest(pub u64);

/// The data of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedData {
    /// The digest of the plan.
    pub plan: PlanDigest,
    /// The number of its files, if this is known.
    pub files: Option<u32>,
    /// True if a measurement made it.
    pub is_measured: bool,
}

impl LoadedData {
    /// The data of `plan`.
    #[must_use]
    pub fn of(plan: &ReplayPlan) -> Self {
        let files = u32::try_from(plan.files.len()).ok();
        Self { plan: PlanDigest::of(plan), files, is_measured: plan.is_measured }
    }
}

/// The data of a replay at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// There is no data.
    Absent,
    /// A part of the data is there: a load was interrupted or is still running.
    Partial(LoadedData),
    /// All data is there.
    Complete(LoadedData),
}

impl LoadState {
    /// The data, of which there may be a part.
    #[must_use]
    pub const fn data(self) -> Option<LoadedData> {
        match self {
            Self::Absent => None,
            Self::Partial(data) | Self::Complete(data) => Some(data),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct LoadMarker {
    format: String,
    version: u32,
    plan: String,
    is_complete: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<u32>,
    #[serde(default)]
    is_measured: bool,
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

/// The marker of `data`.
pub fn load_marker(data: LoadedData, is_complete: bool) -> Vec<u8> {
    let (format, plan) = (FORMAT.to_owned(), format!("{:016x}", data.plan.0));
    let LoadedData { files, is_measured, .. } = data;
    let marker = LoadMarker { format, version: VERSION, plan, is_complete, files, is_measured };
    serde_json::to_vec(&marker).expect("words and numbers")
}

/// The state that a marker records; `None` for bytes that are not a marker of a replay.
pub fn load_state(marker: &[u8]) -> Option<LoadState> {
    let found: LoadMarker = serde_json::from_slice(marker).ok()?;
    if (found.format.as_str(), found.version) != (FORMAT, VERSION) {
        return None;
    }
    let plan = u64::from_str_radix(&found.plan, 16).ok()?;
    let LoadMarker { files, is_measured, .. } = found;
    let data = LoadedData { plan: PlanDigest(plan), files, is_measured };
    Some(match found.is_complete {
        true => LoadState::Complete(data),
        false => LoadState::Partial(data),
    })
}

/// True for a marker of which a crash may have left a part.
pub fn is_marker_part(bytes: &[u8]) -> bool {
    bytes.starts_with(BEGIN) || BEGIN.starts_with(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_come_back_and_others_are_told() {
        let plan = PlanDigest(0x0123_4567_89ab_cdef);
        let data = LoadedData { plan, files: Some(3), is_measured: true };
        let complete = load_marker(data, true);
        let earlier =
            r#"{"format":"esker-replay","version":1,"plan":"0123456789abcdef","is_complete":true}"#;
        let text = earlier.replace('}', r#","files":3,"is_measured":true}"#);
        assert_eq!(String::from_utf8_lossy(&complete), text);
        assert_eq!(load_state(&complete), Some(LoadState::Complete(data)));
        assert_eq!(load_state(&load_marker(data, false)), Some(LoadState::Partial(data)));
        let unknown = LoadedData { files: None, is_measured: false, ..data };
        assert_eq!(load_state(earlier.as_bytes()), Some(LoadState::Complete(unknown)));
        for end in 0..complete.len() {
            assert_eq!(load_state(&complete[..end]), None, "truncated at {end}");
            assert!(is_marker_part(&complete[..end]));
        }
        assert!(!is_marker_part(b"precious"));
        for other in [text.replace("replay", "other"), text.replace(":1,", ":2,")] {
            assert_eq!(load_state(other.as_bytes()), None, "{other}");
        }
    }
}

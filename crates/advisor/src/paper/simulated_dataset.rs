// SPDX-License-Identifier: Apache-2.0
//! Simulated dataset: a dataset of the paper's size, with 687 rows of the file system and 641 of
//! the key-value store, the numbers that Table 2 implies.
//!
//! The design draws each test case at random, with the shares that Tables 2 and 3 imply for
//! OrangeFS: 16.5 % noncontiguous, 59.3 % on solid-state disks, 80 % with four metadata servers.
//! Every row is marked as simulated (`emulated.time`). Noise is multiplicative and normal in the
//! logarithm. The same seed gives the same rows on every machine. Source: Kougkas et al. 2016, §5.1
//! and §5.2.1.

use esker_base::Random;

use super::figures::{APP1_REQUEST_BYTES, with_increased_metadata};
use super::published::{HYPERDEX, ORANGEFS};
use super::simulated_systems::microseconds;
use crate::observation::{
    AccessPattern, EmulatedVariables, IoVariables, Observation, StorageDevice, StorageKind,
};
use crate::statistics::distributions::normal_quantile;

/// The name of the simulated file system.
pub const FILE_SYSTEM: &str = "simulated-orangefs";

/// The name of the simulated key-value store.
pub const KEY_VALUE_STORE: &str = "simulated-hyperdex";

/// The standard deviation of the logarithm of the noise: five repetitions of a run that varies by
/// about a sixth.
const NOISE: f64 = 0.08;

/// The seed of the dataset that commands use.
pub const SEED: u64 = 2016;

const EVERYTHING_SIMULATED: EmulatedVariables = EmulatedVariables {
    servers: true,
    metadata_servers: true,
    clients: true,
    device: true,
    time: true,
};

/// Returns the rows of a seed.
#[must_use]
pub fn dataset(seed: u64) -> Vec<Observation> {
    let mut random = Random::from_seed(seed);
    let (files, objects) = (ORANGEFS.rows() as usize, HYPERDEX.rows() as usize);
    let mut rows = Vec::with_capacity(files + objects);
    for index in 0..files {
        let (workload, variables) = test_case(&mut random);
        let mut add = |system: &str, kind| {
            rows.push(Observation {
                workload: workload.clone(),
                case: format!("{workload}-{index:03}"),
                system: system.into(),
                kind,
                repetition: 0,
                variables: variables.clone(),
                microseconds: microseconds(kind, &variables) * noise(&mut random),
                emulated: EVERYTHING_SIMULATED,
                transfers: None,
                target: String::new(),
            });
        };
        add(FILE_SYSTEM, StorageKind::FileSystem);
        if index < objects {
            add(KEY_VALUE_STORE, StorageKind::KeyValue);
        }
    }
    rows
}

/// A number from 0 to 1, both excluded.
fn uniform(random: &mut Random) -> f64 {
    (random.below(1 << 32) as f64 + 0.5) / (1_u64 << 32) as f64
}

fn noise(random: &mut Random) -> f64 {
    (NOISE * normal_quantile(uniform(random))).exp()
}

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    let index = random.below(choices.len() as u64);
    choices[usize::try_from(index).expect("an index of the choices")]
}

/// Draws a family of workloads and the variables of one of its cases.
fn test_case(random: &mut Random) -> (String, IoVariables) {
    let mut variables = IoVariables {
        servers: one_of(random, &[2, 4, 4, 8]),
        metadata_servers: if uniform(random) < 0.8 { 4 } else { 1 },
        clients: one_of(random, &[2, 4, 8, 8]),
        access_pattern: AccessPattern::Contiguous,
        gap_bytes: 0,
        request_bytes: 64 << 10,
        processes: one_of(random, &[4, 8, 16, 32, 64, 128]),
        input_bytes: one_of(random, &[16, 32, 64, 128]) << 20,
        device: if uniform(random) < 0.593 { StorageDevice::Ssd } else { StorageDevice::Hdd },
        unaligned_bytes: 0,
        metadata_operations: 2,
    };
    let family = if uniform(random) < 0.165 {
        variables.access_pattern = AccessPattern::Noncontiguous;
        noncontiguous(random, &mut variables)
    } else {
        contiguous(random, &mut variables)
    };
    // Players 1 and 3 replayed every trace on OrangeFS.
    match random.one_in(2) {
        true => (format!("{family}-small-files"), with_increased_metadata(&variables)),
        false => (family.into(), variables),
    }
}

fn contiguous(random: &mut Random, variables: &mut IoVariables) -> &'static str {
    match random.below(4) {
        0 => {
            variables.unaligned_bytes = one_of(random, &[0, 1, 2, 8, 32]) << 10;
            "offset-shift"
        }
        1 => {
            variables.request_bytes = one_of(random, &[64, 65, 80, 96, 128]) << 10;
            "request-size"
        }
        2 => {
            variables.request_bytes = one_of(random, &[256, 512, 1024]) << 10;
            "large-requests"
        }
        _ => {
            variables.request_bytes = APP1_REQUEST_BYTES;
            "lanl-app1"
        }
    }
}

fn noncontiguous(random: &mut Random, variables: &mut IoVariables) -> &'static str {
    match random.below(3) {
        0 => {
            variables.gap_bytes = one_of(random, &[16, 32, 64]) << 10;
            variables.request_bytes = one_of(random, &[64, 65]) << 10;
            "small-gaps"
        }
        1 => {
            variables.gap_bytes = one_of(random, &[128, 256, 512]) << 10;
            variables.request_bytes = one_of(random, &[64, 65]) << 10;
            "large-gaps"
        }
        _ => {
            variables.gap_bytes = one_of(random, &[64, 256]) << 10;
            "hpio"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dataset_has_the_papers_shape_and_is_marked() {
        let rows = dataset(SEED);
        assert_eq!(rows.len(), 1328);
        assert_eq!(rows, dataset(SEED));
        assert!(rows.iter().all(|row| row.emulated.time && row.validate().is_ok()));
        let files: Vec<&Observation> =
            rows.iter().filter(|row| row.kind == StorageKind::FileSystem).collect();
        assert_eq!(files.len(), 687);
        let share = |condition: fn(&IoVariables) -> bool| {
            let count = files.iter().filter(|row| condition(&row.variables)).count();
            count as f64 / files.len() as f64
        };
        let noncontiguous = share(|v| v.access_pattern == AccessPattern::Noncontiguous);
        assert!((noncontiguous - 0.165).abs() < 0.04, "{noncontiguous}");
        assert!((share(|v| v.device == StorageDevice::Ssd) - 0.593).abs() < 0.05);
        assert!((share(|v| v.metadata_servers == 4) - 0.8).abs() < 0.05);
        let families: std::collections::BTreeSet<&str> =
            rows.iter().map(|row| row.workload.as_str()).collect();
        assert!(families.len() >= 12, "{families:?}");
    }
}

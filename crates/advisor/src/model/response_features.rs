// SPDX-License-Identifier: Apache-2.0
//! Response features: the variables of a run on scales on which effects on the rate multiply:
//! logarithms of counts, flags of categories, the cost of a request for the devices, and products
//! of those that act together.

use crate::observation::{AccessPattern, IoVariables, StorageDevice};
use crate::paper::simulated_systems::STRIPE_BYTES;

/// Features without products; trees find products themselves.
pub const BASE_FEATURES: usize = 13;

/// The names of all features, in the order of [`values`]. A file of a model names those it uses.
pub const NAMES: [&str; 25] = [
    "ln servers",
    "ln metadata servers",
    "ln clients",
    "ln processes",
    "ln request bytes",
    "ln input bytes",
    "noncontiguous",
    "ln gap",
    "solid state",
    "unaligned",
    "ln stripes of a request",
    "ln metadata operations of a request",
    "ln access cost",
    "solid state × noncontiguous",
    "solid state × metadata",
    "solid state × processes",
    "solid state × request bytes",
    "solid state × servers",
    "metadata × metadata servers",
    "metadata × request bytes",
    "metadata × processes",
    "servers × processes",
    "clients × processes",
    "servers × clients",
    "noncontiguous × servers",
];

/// Bytes that a device transfers in the time of one access: hard disks (4 ms at 100 MB/s) and
/// solid-state disks (0.1 ms at 500 MB/s). Source: Kougkas et al. 2016, §2.3, for the times.
fn access_bytes(device: StorageDevice) -> f64 {
    match device {
        StorageDevice::Hdd => 4e5,
        StorageDevice::Ssd => 5e4,
    }
}

fn ln_count(count: u32) -> f64 {
    f64::from(count.max(1)).ln()
}

/// Returns the features of a run.
#[must_use]
pub fn values(variables: &IoVariables) -> [f64; NAMES.len()] {
    let servers = ln_count(variables.servers);
    let metadata_servers = ln_count(variables.metadata_servers);
    let clients = ln_count(variables.clients);
    let processes = ln_count(variables.processes);
    let bytes = variables.request_bytes.max(1) as f64;
    let request = bytes.ln();
    let noncontiguous =
        f64::from(u8::from(variables.access_pattern == AccessPattern::Noncontiguous));
    let solid = f64::from(u8::from(variables.device == StorageDevice::Ssd));
    let is_unaligned =
        variables.unaligned_bytes != 0 || !variables.request_bytes.is_multiple_of(STRIPE_BYTES);
    let stripe = STRIPE_BYTES as f64;
    // A request of n stripes touches n if aligned; otherwise one more in the mean.
    let stripes = (bytes / stripe).max(1.0) + f64::from(u8::from(is_unaligned));
    let operations = variables.metadata_operations as f64 / variables.requests().max(1) as f64;
    let metadata = operations.ln_1p();
    let accesses = access_bytes(variables.device) * (1.0 + 3.0 * noncontiguous);
    [
        servers,
        metadata_servers,
        clients,
        processes,
        request,
        (variables.input_bytes.max(1) as f64).ln(),
        noncontiguous,
        (variables.gap_bytes as f64 / 4096.0).ln_1p(),
        solid,
        f64::from(u8::from(is_unaligned)),
        stripes.ln(),
        metadata,
        (accesses / bytes).ln_1p(),
        solid * noncontiguous,
        solid * metadata,
        solid * processes,
        solid * request,
        solid * servers,
        metadata * metadata_servers,
        metadata * request,
        metadata * processes,
        servers * processes,
        clients * processes,
        servers * clients,
        noncontiguous * servers,
    ]
}

/// Returns the index of a feature.
#[must_use]
pub fn index_of(name: &str) -> Option<usize> {
    NAMES.iter().position(|other| *other == name)
}

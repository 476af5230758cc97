// SPDX-License-Identifier: Apache-2.0
//! Simulated systems: service models of a striped parallel file system and of a key-value store on
//! the paper's cluster: four to eight servers with hard or solid-state disks behind gigabit
//! Ethernet.
//!
//! A model is a closed queueing network: the processes circulate between the interfaces of the
//! clients, the metadata servers, and the processors, interfaces and devices of the servers. Mean
//! value analysis solves it exactly for exponential service, without random numbers. Constants are
//! those that the paper states (stripe, latencies, Ethernet, read-ahead); those that it does not
//! state are marked as chosen. They were chosen once, for the rates of Figures 1 and 5 to 7. A
//! request that a file system stripes over w servers counts as w customers of its share each, which
//! overlap fully; a fixed wait for the last of its parts makes up for that. Nothing is cached.
//! Source: Kougkas et al. 2016, §2, §3 and §4; Reiser and Lavenberg, Mean-value analysis of closed
//! multichain queuing networks, JACM 27(2), 1980.

use crate::observation::{AccessPattern, IoVariables, StorageDevice, StorageKind};

/// The stripe of OrangeFS (§2.1).
pub const STRIPE_BYTES: u64 = 64 << 10;

/// Read-ahead of the servers (§5.2.1).
pub const READ_AHEAD_BYTES: u64 = 128 << 10;

/// Gigabit Ethernet, in bytes per second (§4).
pub const INTERFACE_RATE: f64 = 125e6;

/// A message there and back (chosen).
pub const ROUND_TRIP_SECONDS: f64 = 0.15e-3;

/// The processor's work for a part of a request at a file server (chosen).
const PART_SECONDS: f64 = 0.06e-3;

/// The cost of joining the parts of a request, for each part after the first (chosen).
const SYNCHRONISATION_SECONDS: f64 = 0.09e-3;

/// The processor's work for one object in the key-value store: hashing and look-up (chosen).
const OBJECT_SECONDS: f64 = 0.12e-3;

/// Bytes per second at which the store copies and checks an object (chosen).
const OBJECT_COPY_RATE: f64 = 400e6;

/// Objects were loaded in the order of the trace, so that one access of the device reads this many
/// bytes of them (chosen; §3.2.3 says that hard disks lose only 5 to 35 %).
pub const OBJECT_READ_BYTES: f64 = 1_048_576.0;

/// The processor's work for a metadata operation (chosen).
pub const METADATA_SECONDS: f64 = 0.70e-3;

/// Accesses of the device for each metadata operation, some of which a cache answers (chosen).
const METADATA_ACCESSES: f64 = 0.5;

/// Requests over which the parts of a request are averaged: their offsets repeat after as many.
const SAMPLED_REQUESTS: u64 = 64;

/// Customers beyond which every network is saturated; the solution takes time with their number.
const CUSTOMERS_MAX: f64 = 100_000.0;

/// Seconds before a device delivers the first byte (§2.3).
#[must_use]
pub const fn access_seconds(device: StorageDevice) -> f64 {
    match device {
        StorageDevice::Hdd => 4e-3,
        StorageDevice::Ssd => 0.1e-3,
    }
}

/// Bytes per second of a device (chosen).
#[must_use]
pub const fn device_rate(device: StorageDevice) -> f64 {
    match device {
        StorageDevice::Hdd => 100e6,
        StorageDevice::Ssd => 500e6,
    }
}

/// Stations of one sort, over which requests spread evenly, and the seconds that one request keeps
/// one of them busy in the mean.
#[derive(Clone, Copy, Debug)]
struct ServiceStation {
    count: u32,
    demand: f64,
}

/// Returns requests per second of `customers` that circulate between the stations with `delay`
/// seconds elsewhere, by exact mean value analysis.
fn throughput(stations: &[ServiceStation], delay: f64, customers: u32) -> f64 {
    let mut queues = vec![0.0; stations.len()];
    let mut rate = 0.0;
    for present in 1..=customers {
        let waits: Vec<f64> = stations
            .iter()
            .zip(&queues)
            .map(|(station, queue)| station.demand / f64::from(station.count) * (1.0 + queue))
            .collect();
        let cycle: f64 =
            waits.iter().zip(stations).map(|(wait, station)| wait * f64::from(station.count)).sum();
        rate = f64::from(present) / (delay + cycle);
        for (queue, wait) in queues.iter_mut().zip(&waits) {
            *queue = rate * wait;
        }
    }
    rate
}

/// The parts of a request in the mean, one for each stripe that it touches.
fn parts_of_request(variables: &IoVariables) -> f64 {
    let step = variables.request_bytes.saturating_add(variables.gap_bytes);
    let parts = (0..SAMPLED_REQUESTS).map(|index| {
        let begin = variables.unaligned_bytes.saturating_add(index.saturating_mul(step));
        let last = begin.saturating_add(variables.request_bytes - 1);
        (last / STRIPE_BYTES - begin / STRIPE_BYTES + 1) as f64
    });
    parts.sum::<f64>() / SAMPLED_REQUESTS as f64
}

/// Seconds that the devices of the file system need for one request whose parts are on `width`
/// servers: streams of several processes interrupt each other's read-ahead, at most once for each
/// piece, and gaps beyond it defeat it.
fn file_device_seconds(variables: &IoVariables, width: f64) -> f64 {
    let bytes = variables.request_bytes as f64;
    let access = access_seconds(variables.device);
    let rate = device_rate(variables.device);
    let others = 1.0 - 1.0 / f64::from(variables.processes);
    match variables.access_pattern {
        AccessPattern::Noncontiguous if variables.gap_bytes >= READ_AHEAD_BYTES => {
            width * access + bytes / rate
        }
        AccessPattern::Noncontiguous | AccessPattern::Contiguous => {
            let read = bytes + variables.gap_bytes as f64;
            (read / READ_AHEAD_BYTES as f64).min(width) * others * access + read / rate
        }
    }
}

/// Returns the microseconds that the simulated system of this category needs for the I/O.
///
/// # Panics
/// If a count of servers, metadata servers or clients is 0, or the variables are not valid.
#[must_use]
pub fn microseconds(kind: StorageKind, variables: &IoVariables) -> f64 {
    variables.validate().expect("the caller passes valid variables");
    let bytes = variables.request_bytes as f64;
    let requests = variables.requests() as f64;
    let access = access_seconds(variables.device);
    let clients = ServiceStation {
        count: variables.clients.min(variables.processes),
        demand: bytes / INTERFACE_RATE,
    };
    let parts = parts_of_request(variables);
    // The servers that work on one request at once.
    let width = match kind {
        StorageKind::FileSystem => parts.min(f64::from(variables.servers)),
        StorageKind::KeyValue => 1.0,
    };
    let stations = match kind {
        StorageKind::FileSystem => {
            let synchronisation = (parts - 1.0) * SYNCHRONISATION_SECONDS;
            let server = bytes / INTERFACE_RATE + parts * PART_SECONDS + synchronisation;
            let metadata = METADATA_SECONDS + METADATA_ACCESSES * access;
            let operations = variables.metadata_operations as f64 / requests;
            vec![
                clients,
                ServiceStation { count: variables.servers, demand: server },
                ServiceStation {
                    count: variables.servers,
                    demand: file_device_seconds(variables, width),
                },
                ServiceStation { count: variables.metadata_servers, demand: operations * metadata },
            ]
        }
        StorageKind::KeyValue => {
            let device = bytes / OBJECT_READ_BYTES * access + bytes / device_rate(variables.device);
            vec![
                clients,
                ServiceStation {
                    count: variables.servers,
                    demand: bytes / INTERFACE_RATE + OBJECT_SECONDS + bytes / OBJECT_COPY_RATE,
                },
                ServiceStation { count: variables.servers, demand: device },
            ]
        }
    };
    assert!(stations.iter().all(|station| station.count > 0), "no service without a server");
    let shares: Vec<ServiceStation> = stations
        .iter()
        .map(|station| ServiceStation { demand: station.demand / width, ..*station })
        .collect();
    let customers = (f64::from(variables.processes) * width).round().min(CUSTOMERS_MAX);
    let rate = throughput(&shares, ROUND_TRIP_SECONDS, customers as u32) / width;
    let transferred = variables.input_bytes as f64 / bytes;
    f64::from(variables.processes) * transferred / rate * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_has_the_textbook_values_and_bounds() {
        // One customer meets no queue; a saturated network has the rate of its bottleneck.
        let stations =
            [ServiceStation { count: 1, demand: 0.2 }, ServiceStation { count: 2, demand: 0.3 }];
        assert!((throughput(&stations, 0.5, 1) - 1.0).abs() < 1e-12);
        assert!((throughput(&stations, 0.5, 500) - 5.0).abs() < 1e-6);
        // Two customers at one station of demand 1 without delay: always busy.
        let one = [ServiceStation { count: 1, demand: 1.0 }];
        assert!((throughput(&one, 0.0, 2) - 1.0).abs() < 1e-12);
        // Two customers at two balanced stations: X = n / (n + k − 1) / D.
        let two = [ServiceStation { count: 2, demand: 2.0 }];
        assert!((throughput(&two, 0.0, 2) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn unaligned_requests_touch_two_stripes() {
        let mut variables = crate::paper::figures::base_variables();
        variables.request_bytes = STRIPE_BYTES;
        assert_eq!(parts_of_request(&variables), 1.0);
        variables.unaligned_bytes = 1024;
        assert_eq!(parts_of_request(&variables), 2.0);
        variables.unaligned_bytes = 0;
        variables.request_bytes = 2 * STRIPE_BYTES;
        assert_eq!(parts_of_request(&variables), 2.0);
    }
}

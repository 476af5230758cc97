// SPDX-License-Identifier: Apache-2.0
//! Emulated hardware: when servers, clients and devices that a machine does not have would have
//! answered a call.
//!
//! ```text
//! call ─┬─ interface of the client (rank mod c) ─────────────────────────┐
//!       ├─ opens, closes, stats: metadata server (file mod m)            ├─ latest end, and a
//!       └─ bytes: for each part, interface and device of its server      ┘  round trip
//! ```
//! A station serves one request after another. A device keeps the position of its head and what it
//! read ahead: a request costs an access unless it goes on where the head is, and nothing if it was
//! read ahead. Files are striped over the servers, small files and objects lie on one server by
//! their hash, and objects follow each other in the order in which they were loaded. A store logs
//! the objects that it writes, so that these cost no access. Constants are those of the simulated
//! systems (`paper/simulated_systems.rs`). Sources: Kougkas et al. 2016, §2, §4 and §5.2.1.

use std::collections::VecDeque;

use crate::features::StorageConfiguration;
use crate::paper::simulated_systems::{
    INTERFACE_RATE, METADATA_SECONDS, OBJECT_READ_BYTES, READ_AHEAD_BYTES, ROUND_TRIP_SECONDS,
    STRIPE_BYTES, access_seconds, device_rate,
};
use crate::player::ReplayStep;
use crate::trace::TraceOperation;

/// Streams for which a device reads ahead at the same time.
const STREAMS_MAX: usize = 64;

/// The way in which a target stores requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestLayout {
    /// At its offset in a file.
    File,
    /// At its offset in a file that all ranks opened before.
    SharedFile,
    /// As a small file, which is opened, accessed and closed.
    SmallFile,
    /// As an object of a key-value store.
    Object,
}

impl RequestLayout {
    /// True for files, which are striped over all servers.
    fn is_striped(self) -> bool {
        matches!(self, Self::File | Self::SharedFile)
    }
}

/// Bytes of a stream that a device has read.
#[derive(Clone, Copy, Debug)]
struct ReadWindow {
    stream: u64,
    begin: u64,
    end: u64,
}

/// A device, and the interface in front of it.
#[derive(Debug, Default)]
struct EmulatedServer {
    interface_free_ns: u64,
    device_free_ns: u64,
    /// The end of the last access.
    head: Option<(u64, u64)>,
    windows: VecDeque<ReadWindow>,
}

/// A part of a request on one server.
#[derive(Clone, Copy, Debug)]
struct RequestPart {
    server: usize,
    /// The file of the part on its server, and the position in it.
    stream: u64,
    position: u64,
    bytes: u64,
}

/// The hardware of one storage system, and the work that it has.
#[derive(Debug)]
pub struct EmulatedHardware {
    configuration: StorageConfiguration,
    layout: RequestLayout,
    client_free_ns: Vec<u64>,
    metadata_free_ns: Vec<u64>,
    servers: Vec<EmulatedServer>,
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// Makes a station that is free at `free_ns` work for `work_ns`, not before `begin_ns`; returns the
/// end.
fn work(free_ns: &mut u64, begin_ns: u64, work_ns: u64) -> u64 {
    *free_ns = begin_ns.max(*free_ns).saturating_add(work_ns);
    *free_ns
}

/// A server or metadata server of `count`, by a hash.
fn chosen(numbers: [u64; 2], count: usize) -> usize {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&numbers[0].to_le_bytes());
    bytes[8..].copy_from_slice(&numbers[1].to_le_bytes());
    (xxhash_rust::xxh3::xxh3_64(&bytes) % count as u64) as usize
}

impl EmulatedHardware {
    /// Idle hardware.
    #[must_use]
    pub fn new(configuration: StorageConfiguration, layout: RequestLayout) -> Self {
        let count = |number: u32| number.max(1) as usize;
        Self {
            configuration,
            layout,
            client_free_ns: vec![0; count(configuration.clients)],
            metadata_free_ns: vec![0; count(configuration.metadata_servers)],
            servers: (0..count(configuration.servers)).map(|_| EmulatedServer::default()).collect(),
        }
    }

    /// The time at which `step` of `rank`, begun at `begin_ns`, has its answer.
    pub fn end_ns(&mut self, rank: u32, step: &ReplayStep, begin_ns: u64) -> u64 {
        let metadata_operations = match (step.operation, self.layout) {
            (TraceOperation::Read | TraceOperation::Write, RequestLayout::SmallFile) => 2,
            (TraceOperation::Read | TraceOperation::Write, _) => 0,
            (_, RequestLayout::File) => 1,
            // Opens and closes of the trace are left out.
            _ => return begin_ns,
        };
        let mut end_ns = begin_ns;
        if metadata_operations > 0 {
            let object = if self.layout == RequestLayout::File { 0 } else { step.object };
            let server = chosen([u64::from(step.file), object], self.metadata_free_ns.len());
            let work_ns = metadata_operations * nanoseconds(METADATA_SECONDS);
            end_ns = work(&mut self.metadata_free_ns[server], begin_ns, work_ns);
        }
        if step.operation.is_transfer() {
            let clients = self.client_free_ns.len();
            let work_ns = nanoseconds(step.bytes as f64 / INTERFACE_RATE);
            let client = &mut self.client_free_ns[rank as usize % clients];
            let mut last_ns = work(client, end_ns, work_ns);
            for part in self.parts(step) {
                let part_end_ns = self.transfer(step.operation, part, end_ns);
                last_ns = last_ns.max(part_end_ns);
            }
            end_ns = last_ns;
        }
        end_ns.saturating_add(nanoseconds(ROUND_TRIP_SECONDS))
    }

    /// The parts of a request: one for each server over which it is striped.
    fn parts(&self, step: &ReplayStep) -> Vec<RequestPart> {
        let servers = self.servers.len() as u64;
        let file = u64::from(step.file);
        if !self.layout.is_striped() {
            let server = chosen([file, step.object], self.servers.len());
            // Objects of a file lie in its order on each server, and small files anywhere.
            let (stream, position) = match self.layout {
                RequestLayout::Object => (file, step.object.saturating_mul(step.bytes) / servers),
                _ => ((file << 32) ^ step.object, 0),
            };
            return vec![RequestPart { server, stream, position, bytes: step.bytes }];
        }
        let mut parts: Vec<RequestPart> = Vec::new();
        let end = step.offset.saturating_add(step.bytes);
        let mut offset = step.offset;
        while offset < end {
            let stripe = offset / STRIPE_BYTES;
            let next = (stripe + 1).saturating_mul(STRIPE_BYTES).min(end);
            let server = ((stripe + file) % servers) as usize;
            let bytes = next - offset;
            match parts.iter_mut().find(|part| part.server == server) {
                // Stripes of one server lie side by side there.
                Some(part) => part.bytes += bytes,
                None => {
                    let position = stripe / servers * STRIPE_BYTES + offset % STRIPE_BYTES;
                    parts.push(RequestPart { server, stream: file, position, bytes });
                }
            }
            offset = next;
        }
        parts
    }

    /// Transfers a part; returns the end.
    fn transfer(&mut self, operation: TraceOperation, part: RequestPart, begin_ns: u64) -> u64 {
        let device = self.configuration.device;
        let is_logged = operation == TraceOperation::Write && self.layout == RequestLayout::Object;
        let read_ahead = match self.layout {
            RequestLayout::File | RequestLayout::SharedFile => READ_AHEAD_BYTES,
            RequestLayout::SmallFile => 0,
            RequestLayout::Object => OBJECT_READ_BYTES as u64,
        };
        let server = &mut self.servers[part.server];
        let (is_access, bytes) = match is_logged {
            true => (false, part.bytes),
            false => server.access(part, read_ahead),
        };
        let access = if is_access { access_seconds(device) } else { 0.0 };
        let device_ns = nanoseconds(access + bytes as f64 / device_rate(device));
        let device_end_ns = work(&mut server.device_free_ns, begin_ns, device_ns);
        let interface_ns = nanoseconds(part.bytes as f64 / INTERFACE_RATE);
        device_end_ns.max(work(&mut server.interface_free_ns, begin_ns, interface_ns))
    }
}

impl EmulatedServer {
    /// Moves the head for a part; returns whether it had to be moved, and the bytes that pass it.
    fn access(&mut self, part: RequestPart, read_ahead: u64) -> (bool, u64) {
        let RequestPart { stream, position, .. } = part;
        let end = position.saturating_add(part.bytes);
        let goes_on = |window: &ReadWindow| {
            window.stream == stream
                && (window.begin..=window.end.saturating_add(read_ahead)).contains(&position)
        };
        let Some(found) = self.windows.iter().position(goes_on) else {
            let is_moved = self.head != Some((stream, position));
            self.head = Some((stream, end));
            if self.windows.len() == STREAMS_MAX {
                self.windows.pop_front();
            }
            self.windows.push_back(ReadWindow { stream, begin: position, end });
            return (is_moved, part.bytes);
        };
        let mut window = self.windows.remove(found).expect("found above");
        let mut passed = (false, 0);
        if end > window.end {
            // Reads on from where it stopped, over a gap as well.
            let new_end = end.max(window.end.saturating_add(read_ahead));
            passed = (self.head != Some((stream, window.end)), new_end - window.end);
            self.head = Some((stream, new_end));
            window.end = new_end;
        }
        self.windows.push_back(window);
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::StorageDevice;

    const MS: u64 = 1_000_000;
    const ROUND_TRIP_NS: u64 = 150_000;

    fn hardware(servers: u32, layout: RequestLayout) -> EmulatedHardware {
        let device = StorageDevice::Hdd;
        let configuration =
            StorageConfiguration { servers, metadata_servers: 1, clients: 2, device };
        EmulatedHardware::new(configuration, layout)
    }

    fn step(operation: TraceOperation, offset: u64, bytes: u64) -> ReplayStep {
        ReplayStep { operation, file: 0, offset, bytes, object: offset / bytes.max(1), begin_ns: 0 }
    }

    /// The time of a read by an otherwise idle system.
    fn read_ns(hardware: &mut EmulatedHardware, offset: u64, bytes: u64) -> u64 {
        // Long after everything before.
        let begin_ns = hardware.servers.iter().map(|server| server.device_free_ns).max();
        let begin_ns = begin_ns.unwrap_or(0) + 1_000 * MS;
        hardware.end_ns(0, &step(TraceOperation::Read, offset, bytes), begin_ns) - begin_ns
    }

    #[test]
    fn a_device_moves_its_head_and_reads_ahead() {
        let mut hardware = hardware(1, RequestLayout::File);
        // 1,000 bytes take 10 us at 100 MB/s.
        assert_eq!(read_ns(&mut hardware, 0, 1_000), 4 * MS + 10_000 + ROUND_TRIP_NS);
        // The head is there, and passes 128 KiB.
        assert_eq!(read_ns(&mut hardware, 1_000, 1_000), 1_310_720 + ROUND_TRIP_NS);
        // Read ahead: only the interface works, at 125 MB/s.
        assert_eq!(read_ns(&mut hardware, 2_000, 1_000), 8_000 + ROUND_TRIP_NS);
        let far = 10 << 20;
        assert_eq!(read_ns(&mut hardware, far, 1_000), 4 * MS + 10_000 + ROUND_TRIP_NS);
        // The first stream goes on, but the head is elsewhere.
        let first_end = 1_000 + (128 << 10);
        let moved = 4 * MS + 1_310_720 + ROUND_TRIP_NS;
        assert_eq!(read_ns(&mut hardware, first_end, 1_000), moved);
    }

    #[test]
    fn files_are_striped_and_servers_work_at_once() {
        let bytes = 4 * STRIPE_BYTES;
        let one = read_ns(&mut hardware(1, RequestLayout::File), 0, bytes);
        let four = read_ns(&mut hardware(4, RequestLayout::File), 0, bytes);
        assert_eq!(one, 4 * MS + bytes * 10 + ROUND_TRIP_NS);
        // Each device has a quarter of the bytes.
        assert_eq!(four, 4 * MS + STRIPE_BYTES * 10 + ROUND_TRIP_NS);
        let parts = hardware(3, RequestLayout::File).parts(&step(TraceOperation::Read, 100, bytes));
        assert_eq!(parts.len(), 3);
        assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), bytes);
    }

    #[test]
    fn requests_wait_for_each_other_at_each_station() {
        let mut busy = hardware(1, RequestLayout::File);
        let open = step(TraceOperation::Open, 0, 0);
        let metadata_ns = nanoseconds(METADATA_SECONDS);
        assert_eq!(busy.end_ns(0, &open, 0), metadata_ns + ROUND_TRIP_NS);
        assert_eq!(busy.end_ns(1, &open, 0), 2 * metadata_ns + ROUND_TRIP_NS);
        let read = step(TraceOperation::Read, 0, 125_000);
        let first = busy.end_ns(0, &read, 0);
        // The client's interface is busy for a millisecond with the first, the device for longer.
        let second = busy.end_ns(0, &step(TraceOperation::Read, 1 << 30, 125_000), 0);
        assert!(second >= first + 4 * MS, "{first} {second}");
    }

    #[test]
    fn small_files_cost_metadata_and_objects_do_not() {
        let read = step(TraceOperation::Read, 0, 1_000);
        let small = hardware(1, RequestLayout::SmallFile).end_ns(0, &read, 0);
        let object = hardware(1, RequestLayout::Object).end_ns(0, &read, 0);
        assert_eq!(small, object + 2 * nanoseconds(METADATA_SECONDS));
        let write = step(TraceOperation::Write, 0, 1_000);
        let logged = hardware(1, RequestLayout::Object).end_ns(0, &write, 0);
        assert_eq!(logged, 10_000 + ROUND_TRIP_NS, "no access");
        let open = step(TraceOperation::Open, 0, 0);
        assert_eq!(hardware(1, RequestLayout::Object).end_ns(0, &open, 5), 5, "left out");
    }

    #[test]
    fn extreme_requests_are_served() {
        for layout in [RequestLayout::File, RequestLayout::SmallFile, RequestLayout::Object] {
            let far = ReplayStep {
                object: u64::MAX,
                file: u32::MAX,
                ..step(TraceOperation::Read, u64::MAX - 10, 10)
            };
            assert_eq!(hardware(8, layout).end_ns(u32::MAX, &far, u64::MAX), u64::MAX);
        }
    }
}

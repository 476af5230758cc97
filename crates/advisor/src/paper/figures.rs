// SPDX-License-Identifier: Apache-2.0
//! Figures: the numbers that the text gives about Figures 1–12, beside those of the simulated
//! systems.
//!
//! The text does not give every parameter of a figure. Where it is silent, 4 servers, 4 metadata
//! servers, 8 clients, 32 processes, 64 KiB requests and 64 MiB for each process apply, as in Table
//! 1's example. LANL App1's three sizes are represented by their mean.
//! Source: Kougkas et al. 2016, §2–§4.

use serde::Serialize;

use super::simulated_systems::{READ_AHEAD_BYTES, STRIPE_BYTES, microseconds};
use crate::observation::{AccessPattern, IoVariables, StorageDevice, StorageKind};

/// Numbers within this share of the printed range agree: figures are read to two digits.
const TOLERATED_SHARE: f64 = 0.25;

/// The mean request of LANL App1: 16, 131,056 and 131,072 bytes.
pub const APP1_REQUEST_BYTES: u64 = (16 + 131_056 + 131_072) / 3;

/// The result of comparing two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PaperAgreement {
    /// Ours is in the printed range, or a quarter beside it.
    Agrees,
    /// Ours differs more, but has the same sign.
    SameDirection,
    /// Ours has the other sign, or there is no number.
    Differs,
}

impl PaperAgreement {
    /// Compares `ours` with the printed range.
    #[must_use]
    pub fn of(ours: f64, printed: [f64; 2]) -> Self {
        let slack = TOLERATED_SHARE * printed[0].abs().max(printed[1].abs());
        if ours >= printed[0] - slack && ours <= printed[1] + slack {
            Self::Agrees
        } else if ours * (printed[0] + printed[1]) > 0.0 {
            Self::SameDirection
        } else {
            Self::Differs
        }
    }

    /// The words for a reader.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::SameDirection => "same direction",
            Self::Differs => "differs",
        }
    }
}

/// One number of the text about a figure.
#[derive(Clone, Debug, Serialize)]
pub struct FigureClaim {
    /// The figure.
    pub figure: &'static str,
    /// Its subject, with the unit.
    pub subject: &'static str,
    /// The printed number as a range; "under 30" is from 0.
    pub printed: [f64; 2],
    /// The simulated systems' number.
    pub simulated: f64,
    /// The result of comparing them.
    pub agreement: PaperAgreement,
}

/// The variables that apply where the text is silent.
#[must_use]
pub fn base_variables() -> IoVariables {
    IoVariables {
        servers: 4,
        metadata_servers: 4,
        clients: 8,
        access_pattern: AccessPattern::Contiguous,
        gap_bytes: 0,
        request_bytes: STRIPE_BYTES,
        processes: 32,
        input_bytes: 64 << 20,
        device: StorageDevice::Ssd,
        unaligned_bytes: 0,
        metadata_operations: 2,
    }
}

/// The simulated rate of the file system in MB/s.
fn files(variables: &IoVariables) -> f64 {
    variables.bandwidth(microseconds(StorageKind::FileSystem, variables))
}

/// The simulated rate of the key-value store in MB/s.
fn objects(variables: &IoVariables) -> f64 {
    variables.bandwidth(microseconds(StorageKind::KeyValue, variables))
}

/// The same I/O with three metadata operations for each request (the third player, §4.1.2).
#[must_use]
pub fn with_increased_metadata(variables: &IoVariables) -> IoVariables {
    IoVariables { metadata_operations: 3 * variables.requests(), ..variables.clone() }
}

fn increased(variables: &IoVariables) -> f64 {
    files(&with_increased_metadata(variables))
}

/// The percentage by which `value` exceeds `base`.
fn percent_over(value: f64, base: f64) -> f64 {
    (value / base - 1.0) * 100.0
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Returns the claims in the order of the figures.
#[must_use]
pub fn claims() -> Vec<FigureClaim> {
    let mut all = Vec::new();
    file_system_claims(&mut all);
    key_value_claims(&mut all);
    synthetic_claims(&mut all);
    application_claims(&mut all);
    all
}

fn claim(figure: &'static str, subject: &'static str, printed: [f64; 2], ours: f64) -> FigureClaim {
    let agreement = PaperAgreement::of(ours, printed);
    FigureClaim { figure, subject, printed, simulated: ours, agreement }
}

/// Figures 1 to 3: the file system alone.
fn file_system_claims(all: &mut Vec<FigureClaim>) {
    let base = base_variables();
    let aligned = files(&base);
    let shifted = [1, 2, 8, 32].map(|kib| {
        percent_over(files(&IoVariables { unaligned_bytes: kib << 10, ..base.clone() }), aligned)
    });
    let subject = "shifts by 1 to 32 KiB against 0, %";
    all.push(claim("1a", subject, [-20.0, -20.0], mean(shifted.into_iter())));
    let sizes = [65, 80, 96].map(|kib| {
        percent_over(files(&IoVariables { request_bytes: kib << 10, ..base.clone() }), aligned)
    });
    let subject = "65, 80 and 96 KiB requests against 64, %";
    all.push(claim("1b", subject, [-20.0, -10.0], mean(sizes.into_iter())));
    let disks = IoVariables { device: StorageDevice::Hdd, ..base.clone() };
    all.push(claim("2", "HPIO, 32 processes, HDD, MB/s", [125.0, 125.0], files(&disks)));
    all.push(claim("2", "the same, increased metadata, MB/s", [32.0, 32.0], increased(&disks)));
    let share = files(&disks) / aligned * 100.0;
    all.push(claim("3", "HPIO on HDD in % of SSD", [15.0, 35.0], share));
}

/// Figures 5 to 7: the key-value store, and the file system beside it.
fn key_value_claims(all: &mut Vec<FigureClaim>) {
    let base = base_variables();
    let flat = mean(
        [1, 2, 8, 32]
            .into_iter()
            .map(|kib| objects(&IoVariables { unaligned_bytes: kib << 10, ..base.clone() })),
    );
    all.push(claim("5", "key-value store, shifted offsets, MB/s", [300.0, 350.0], flat));
    all.push(claim("5", "file system, aligned, MB/s", [400.0, 480.0], files(&base)));
    let gaps = gapped(StorageDevice::Hdd);
    let subject = "key-value store, noncontiguous, SSD, MB/s";
    all.push(claim("6", subject, [300.0, 300.0], objects(&gapped(StorageDevice::Ssd))));
    all.push(claim("6", "file system, noncontiguous, HDD, MB/s", [50.0, 50.0], files(&gaps)));
    let disks = IoVariables { device: StorageDevice::Hdd, ..base.clone() };
    let below = percent_over(objects(&disks), objects(&base));
    all.push(claim("7", "key-value store on HDD against SSD, %", [-35.0, -5.0], below));
    all.push(claim("7", "key-value store on SSD, MB/s", [300.0, 300.0], objects(&base)));
    all.push(claim("7", "file system on SSD, MB/s", [450.0, 450.0], files(&base)));
}

/// 64 KiB requests with gaps beyond the read-ahead.
fn gapped(device: StorageDevice) -> IoVariables {
    IoVariables {
        access_pattern: AccessPattern::Noncontiguous,
        gap_bytes: 2 * READ_AHEAD_BYTES,
        device,
        ..base_variables()
    }
}

/// Figures 8 to 10: the synthetic patterns, on hard disks unless the text says otherwise.
fn synthetic_claims(all: &mut Vec<FigureClaim>) {
    let disks = IoVariables { device: StorageDevice::Hdd, ..base_variables() };
    let shifts =
        [1, 2, 8, 32].map(|kib| IoVariables { unaligned_bytes: kib << 10, ..disks.clone() });
    let over = |other: fn(&IoVariables) -> f64, cases: &[IoVariables]| {
        mean(cases.iter().map(|case| percent_over(objects(case), other(case))))
    };
    let subject = "key-value store over file system, shifted offsets, %";
    all.push(claim("8", subject, [244.0, 244.0], over(files, &shifts)));
    let subject = "the same, increased metadata, %";
    all.push(claim("8", subject, [698.0, 698.0], over(increased, &shifts)));
    let sizes =
        [64, 65, 80, 96, 128].map(|kib| IoVariables { request_bytes: kib << 10, ..disks.clone() });
    let subject = "key-value store over file system, request sizes, %";
    all.push(claim("9", subject, [183.0, 338.0], over(files, &sizes)));
    let subject = "the same, increased metadata, %";
    all.push(claim("9", subject, [914.0, 914.0], over(increased, &sizes)));
    let rate = mean(sizes.iter().map(objects));
    all.push(claim("9", "key-value store, MB/s", [200.0, 200.0], rate));
    let rate = mean(sizes.iter().map(increased));
    all.push(claim("9", "file system, increased metadata, MB/s", [35.0, 35.0], rate));
    let gaps = gapped(StorageDevice::Hdd);
    all.push(claim("10a", "key-value store, HDD, MB/s", [265.0, 265.0], objects(&gaps)));
    all.push(claim("10a", "file system, HDD, MB/s", [0.0, 30.0], files(&gaps)));
    let solid = IoVariables { processes: 128, ..gapped(StorageDevice::Ssd) };
    let odd = IoVariables { request_bytes: 65 << 10, ..solid.clone() };
    let subject = "file system, SSD, 64 KiB, 128 processes, MB/s";
    all.push(claim("10b", subject, [400.0, 400.0], files(&solid)));
    let subject = "65 KiB against 64 KiB there, %";
    all.push(claim("10b", subject, [-24.0, -24.0], percent_over(files(&odd), files(&solid))));
    let subject = "key-value store over increased metadata, SSD, %";
    all.push(claim("10b", subject, [238.0, 238.0], over(increased, &[solid, odd])));
}

/// Figures 11 and 12: HPIO and LANL App1 on hard disks.
fn application_claims(all: &mut Vec<FigureClaim>) {
    let cases = [8, 16, 32, 64, 128]
        .map(|processes| IoVariables { processes, ..gapped(StorageDevice::Hdd) });
    let rate = mean(cases.iter().map(objects));
    all.push(claim("11", "HPIO, key-value store, MB/s", [256.0, 256.0], rate));
    let lowest = cases.iter().map(files).fold(f64::INFINITY, f64::min);
    all.push(claim("11", "HPIO, file system at its lowest, MB/s", [63.0, 63.0], lowest));
    let over = mean(cases.iter().map(|case| percent_over(objects(case), files(case))));
    all.push(claim("11", "HPIO, key-value store over file system, %", [241.0, 241.0], over));
    let rate = mean(cases.iter().map(increased));
    all.push(claim("11", "HPIO, increased metadata, MB/s", [50.0, 50.0], rate));
    let app1 = IoVariables {
        request_bytes: APP1_REQUEST_BYTES,
        device: StorageDevice::Hdd,
        ..base_variables()
    };
    all.push(claim("12", "App1, key-value store, MB/s", [179.0, 220.0], objects(&app1)));
    all.push(claim("12", "App1, file system, MB/s", [110.0, 120.0], files(&app1)));
    let rate = increased(&app1);
    all.push(claim("12", "App1, increased metadata, MB/s", [25.0, 25.0], rate));
}

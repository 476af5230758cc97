// SPDX-License-Identifier: Apache-2.0
//! CSV rows: observations as CSV, with the header [`COLUMNS`]: docs/format/advisor-observations.md.
//!
//! A reader accepts the columns in any order and ignores columns that it does not know. Bytes that
//! are no such table give `Corrupt` with the line.

use std::collections::HashMap;

use csv::StringRecord;
use esker_base::{Error, Kind, Result};

use super::{
    AccessPattern, EmulatedVariables, IoVariables, Observation, StorageDevice, StorageKind,
};

/// The columns in the order in which they are written.
pub const COLUMNS: [&str; 18] = [
    "workload",
    "case",
    "system",
    "kind",
    "repetition",
    "servers",
    "metadata_servers",
    "clients",
    "access_pattern",
    "gap_bytes",
    "request_bytes",
    "processes",
    "input_bytes",
    "device",
    "unaligned_bytes",
    "metadata_operations",
    "time_us",
    "emulated",
];

/// The longest file that a reader accepts: ten million rows of typical length.
pub const CSV_BYTES_MAX: usize = 1 << 30;

/// The names of emulated variables, which the column `emulated` joins with `+`.
const EMULATED_NAMES: [&str; 5] = ["servers", "metadata_servers", "clients", "device", "time"];

/// Returns the observations as CSV with a header line.
#[must_use]
pub fn write_csv(observations: &[Observation]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = writer.write_record(COLUMNS).and_then(|()| {
        observations.iter().try_for_each(|observation| writer.write_record(fields(observation)))
    });
    written.expect("memory takes every row, and every row has all columns");
    let bytes = writer.into_inner().expect("memory takes the last rows");
    String::from_utf8(bytes).expect("fields are text, and CSV of text is text")
}

fn fields(observation: &Observation) -> [String; COLUMNS.len()] {
    let variables = &observation.variables;
    [
        observation.workload.clone(),
        observation.case.clone(),
        observation.system.clone(),
        observation.kind.code().to_string(),
        observation.repetition.to_string(),
        variables.servers.to_string(),
        variables.metadata_servers.to_string(),
        variables.clients.to_string(),
        variables.access_pattern.code().to_string(),
        variables.gap_bytes.to_string(),
        variables.request_bytes.to_string(),
        variables.processes.to_string(),
        variables.input_bytes.to_string(),
        variables.device.code().to_string(),
        variables.unaligned_bytes.to_string(),
        variables.metadata_operations.to_string(),
        observation.microseconds.to_string(),
        emulated_text(observation.emulated),
    ]
}

fn emulated_text(emulated: EmulatedVariables) -> String {
    let EmulatedVariables { servers, metadata_servers, clients, device, time } = emulated;
    let flags = [servers, metadata_servers, clients, device, time];
    let named = EMULATED_NAMES.into_iter().zip(flags).filter(|(_, flag)| *flag);
    named.map(|(name, _)| name).collect::<Vec<_>>().join("+")
}

/// Reads observations; `name` is that of the file, for errors.
///
/// # Errors
/// `TooLarge` if the file is over [`CSV_BYTES_MAX`]; `Corrupt`, with the line, if a column is
/// missing or appears twice, or a field is not a value of its column.
pub fn read_csv(name: &str, bytes: &[u8]) -> Result<Vec<Observation>> {
    if bytes.len() > CSV_BYTES_MAX {
        let message = format!("{name}: {} bytes, at most {CSV_BYTES_MAX} are read", bytes.len());
        return Err(Error::new(Kind::TooLarge, message));
    }
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let headers = reader.headers().map_err(|error| unreadable(name, &error))?.clone();
    let columns = column_indices(name, &headers)?;
    let mut observations = Vec::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| unreadable(name, &error))? {
        let line = record.position().map_or(0, csv::Position::line);
        let row = CsvRow { record: &record, columns: &columns };
        let observation = row.observation().map_err(|problem| corrupt(name, line, &problem))?;
        observation.validate().map_err(|error| corrupt(name, line, error.context()))?;
        observations.push(observation);
    }
    Ok(observations)
}

fn column_indices(name: &str, headers: &StringRecord) -> Result<HashMap<&'static str, usize>> {
    let mut columns = HashMap::new();
    for column in COLUMNS {
        let mut found = headers.iter().enumerate().filter(|(_, header)| *header == column);
        match (found.next(), found.next()) {
            (Some((index, _)), None) => columns.insert(column, index),
            (None, _) => return Err(corrupt(name, 1, &format!("no column `{column}`"))),
            (Some(_), Some(_)) => {
                return Err(corrupt(name, 1, &format!("two columns `{column}`")));
            }
        };
    }
    Ok(columns)
}

fn unreadable(name: &str, error: &csv::Error) -> Error {
    let line = error.position().map_or(1, csv::Position::line);
    corrupt(name, line, &error.to_string())
}

fn corrupt(name: &str, line: u64, problem: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{name}, line {line}: {problem}"))
}

struct CsvRow<'a> {
    record: &'a StringRecord,
    columns: &'a HashMap<&'static str, usize>,
}

impl CsvRow<'_> {
    fn text(&self, column: &'static str) -> Result<&str, String> {
        let index = self.columns[column];
        self.record.get(index).ok_or_else(|| format!("no field `{column}`"))
    }

    fn parsed<T: std::str::FromStr>(&self, column: &'static str) -> Result<T, String> {
        let text = self.text(column)?;
        text.parse().map_err(|_| format!("{column} is {text:?}, not a number that fits"))
    }

    fn category<T: Copy>(&self, column: &'static str, of: [T; 2]) -> Result<T, String> {
        match self.text(column)? {
            "1" => Ok(of[0]),
            "2" => Ok(of[1]),
            other => Err(format!("{column} is {other:?}, must be 1 or 2")),
        }
    }

    fn emulated(&self) -> Result<EmulatedVariables, String> {
        let mut emulated = EmulatedVariables::default();
        for name in self.text("emulated")?.split('+').filter(|name| !name.is_empty()) {
            match name {
                "servers" => emulated.servers = true,
                "metadata_servers" => emulated.metadata_servers = true,
                "clients" => emulated.clients = true,
                "device" => emulated.device = true,
                "time" => emulated.time = true,
                other => {
                    let known = EMULATED_NAMES.join(", ");
                    return Err(format!("emulated names {other:?}, known are {known}"));
                }
            }
        }
        Ok(emulated)
    }

    fn observation(&self) -> Result<Observation, String> {
        Ok(Observation {
            workload: self.text("workload")?.to_owned(),
            case: self.text("case")?.to_owned(),
            system: self.text("system")?.to_owned(),
            kind: self.category("kind", [StorageKind::FileSystem, StorageKind::KeyValue])?,
            repetition: self.parsed("repetition")?,
            variables: IoVariables {
                servers: self.parsed("servers")?,
                metadata_servers: self.parsed("metadata_servers")?,
                clients: self.parsed("clients")?,
                access_pattern: self.category(
                    "access_pattern",
                    [AccessPattern::Contiguous, AccessPattern::Noncontiguous],
                )?,
                gap_bytes: self.parsed("gap_bytes")?,
                request_bytes: self.parsed("request_bytes")?,
                processes: self.parsed("processes")?,
                input_bytes: self.parsed("input_bytes")?,
                device: self.category("device", [StorageDevice::Hdd, StorageDevice::Ssd])?,
                unaligned_bytes: self.parsed("unaligned_bytes")?,
                metadata_operations: self.parsed("metadata_operations")?,
            },
            microseconds: self.parsed("time_us")?,
            emulated: self.emulated()?,
        })
    }
}

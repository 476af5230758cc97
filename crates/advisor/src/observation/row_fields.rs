// SPDX-License-Identifier: Apache-2.0
//! Row fields: an observation as one text for each column, which CSV has and Parquet is made of.

use super::{
    AccessPattern, EmulatedVariables, IoVariables, Observation, StorageDevice, StorageKind,
    TransferKind,
};

/// The columns in the order in which they are written.
pub const COLUMNS: [&str; 20] = [
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
    "transfers",
    "target",
];

/// Columns that tables may lack, whose fields are empty then.
const OPTIONAL_COLUMNS: [&str; 2] = ["transfers", "target"];

/// True for a column that tables may lack.
pub(super) fn is_optional(column: &str) -> bool {
    OPTIONAL_COLUMNS.contains(&column)
}

/// The names of emulated variables, which the column `emulated` joins with `+`.
const EMULATED_NAMES: [&str; 5] = ["servers", "metadata_servers", "clients", "device", "time"];

/// The fields of an observation, in the order of [`COLUMNS`].
pub(super) fn fields(observation: &Observation) -> [String; COLUMNS.len()] {
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
        observation.transfers.map_or("", TransferKind::word).to_owned(),
        observation.target.clone(),
    ]
}

fn emulated_text(emulated: EmulatedVariables) -> String {
    let EmulatedVariables { servers, metadata_servers, clients, device, time } = emulated;
    let flags = [servers, metadata_servers, clients, device, time];
    let named = EMULATED_NAMES.into_iter().zip(flags).filter(|(_, flag)| *flag);
    named.map(|(name, _)| name).collect::<Vec<_>>().join("+")
}

/// The fields of a row, in the order of [`COLUMNS`].
pub(super) struct RowFields<'a>(pub [&'a str; COLUMNS.len()]);

impl RowFields<'_> {
    fn text(&self, column: &'static str) -> &str {
        let index = COLUMNS.iter().position(|name| *name == column);
        self.0[index.expect("a column of the table")]
    }

    fn parsed<T: std::str::FromStr>(&self, column: &'static str) -> Result<T, String> {
        let text = self.text(column);
        text.parse().map_err(|_| format!("{column} is {text:?}, not a number that fits"))
    }

    fn category<T: Copy>(&self, column: &'static str, of: [T; 2]) -> Result<T, String> {
        match self.text(column) {
            "1" => Ok(of[0]),
            "2" => Ok(of[1]),
            other => Err(format!("{column} is {other:?}, must be 1 or 2")),
        }
    }

    fn transfers(&self) -> Result<Option<TransferKind>, String> {
        let text = self.text("transfers");
        let found = TransferKind::ALL.into_iter().find(|kind| kind.word() == text);
        match found.is_some() || text.is_empty() {
            true => Ok(found),
            false => {
                Err(format!("transfers is {text:?}, must be read, write, read-write or empty"))
            }
        }
    }

    fn emulated(&self) -> Result<EmulatedVariables, String> {
        let mut emulated = EmulatedVariables::default();
        for name in self.text("emulated").split('+').filter(|name| !name.is_empty()) {
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

    /// The observation, or the field that is none of its column.
    pub(super) fn observation(&self) -> Result<Observation, String> {
        Ok(Observation {
            workload: self.text("workload").to_owned(),
            case: self.text("case").to_owned(),
            system: self.text("system").to_owned(),
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
            transfers: self.transfers()?,
            target: self.text("target").to_owned(),
        })
    }
}

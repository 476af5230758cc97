// SPDX-License-Identifier: Apache-2.0
//! Printed model: predictions with the coefficients of Table 5 as printed, and the paper's
//! verification with LANL App2 (§5.3, Figure 15).

use super::published::PrintedSystem;
use crate::observation::{IoVariables, StorageDevice};
use crate::regressors::value_of;

/// Servers, metadata servers and clients of the verification.
pub const APP2_CONFIGURATION: [u32; 3] = [8, 4, 8];

/// The smallest and the largest number of processes of the verification.
pub const APP2_PROCESSES: [u32; 2] = [4, 128];

/// Returns the rate that Table 5 predicts, in MB/s.
#[must_use]
pub fn predict(system: &PrintedSystem, variables: &IoVariables) -> f64 {
    let terms = system.coefficients.iter().map(|coefficient| match coefficient.letter {
        "" => coefficient.value,
        letter => {
            let value = value_of(letter, variables).expect("Table 5 has the letters of Table 1");
            coefficient.value * value
        }
    });
    terms.sum()
}

/// The variables of App2 that the paper prints; gap, sizes and metadata operations, which it does
/// not print, come from `rest`. HyperDex's model does not need them.
#[must_use]
pub fn app2(processes: u32, device: StorageDevice, rest: &IoVariables) -> IoVariables {
    let [servers, metadata_servers, clients] = APP2_CONFIGURATION;
    IoVariables { servers, metadata_servers, clients, processes, device, ..rest.clone() }
}

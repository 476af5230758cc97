// SPDX-License-Identifier: Apache-2.0
//! CSV: a result as a table with one row per phase and operation, for spreadsheets and data frames.

use std::fmt::Write;

use crate::pace::Pacing;
use crate::result::RunResult;

/// The names of the columns.
const HEADER: &str = "label,backend,target,ranks,datasets,objects,iterations,object_bytes,\
rank_offset,phase,repetition,waiting_factor,offered_rate,seconds,balance,operation,count,failed,\
rate,mean_ns,min_ns,p25_ns,p50_ns,p75_ns,p90_ns,p99_ns,p999_ns,p9999_ns,max_ns,service_p50_ns,\
service_p99_ns";

/// The result as CSV with a header. Latencies are response times in open loops.
#[must_use]
pub fn table(result: &RunResult) -> String {
    let mut out = format!("{HEADER}\n");
    let size = &result.options.size;
    for phase in &result.phases {
        let (waiting_factor, offered_rate) = match phase.plan.pacing {
            Pacing::Closed { waiting_factor } => (waiting_factor.to_string(), String::new()),
            Pacing::Open { rate, .. } => (String::new(), rate.to_string()),
        };
        for operation in &phase.operations {
            let latency = operation.latency();
            let mut row = vec![quoted(result.label()), quoted(&result.backend)];
            row.push(quoted(&result.target));
            let numbers = [u64::from(size.ranks), u64::from(size.datasets), size.objects];
            row.extend(numbers.map(|number| number.to_string()));
            row.extend([size.iterations, size.object_bytes].map(|number| number.to_string()));
            row.extend([size.rank_offset.to_string(), quoted(&phase.plan.name())]);
            row.extend([phase.plan.repetition.to_string(), waiting_factor.clone()]);
            row.extend([offered_rate.clone(), phase.seconds.to_string()]);
            row.extend([phase.balance().to_string(), operation.operation.to_string()]);
            row.extend([latency.count, operation.failed()].map(|number| number.to_string()));
            let rate = latency.count as f64 / phase.seconds.max(1e-9);
            row.extend([rate, latency.mean_ns()].map(|number| number.to_string()));
            row.push(latency.min_ns.to_string());
            let quantiles = [0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999];
            row.extend(quantiles.map(|quantile| latency.quantile_ns(quantile).to_string()));
            row.push(latency.max_ns.to_string());
            let service = [0.5, 0.99].map(|quantile| operation.service.quantile_ns(quantile));
            row.extend(service.map(|number| number.to_string()));
            writeln!(out, "{}", row.join(",")).expect("strings grow");
        }
    }
    out
}

/// A field that may have commas, quotes or line ends.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

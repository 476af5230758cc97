// SPDX-License-Identifier: Apache-2.0
//! Advice text: the advice as text that fits one screen of 24 lines.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::storage_advice::{StorageAdvice, StorageVerdict};
use crate::features::TraceFeatures;
use crate::observation::{AccessPattern, StorageDevice};

/// Reasons and changes that the screen has room for.
const LINES_EACH: usize = 3;

/// Systems that it has room for.
const SYSTEMS_MAX: usize = 6;

/// Returns the advice for the application in `name`.
#[must_use]
pub fn text(advice: &StorageAdvice, features: &TraceFeatures, name: &str) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}\n", verdict(advice));
    let _ = writeln!(out, "{name}: {}", application(advice, features));
    let _ = writeln!(out, "\n{:<32}{:>10}{:>22}", "expected rate", "MB/s", "90 % of runs");
    for rate in advice.rates.iter().take(SYSTEMS_MAX) {
        let predicted = rate.predicted;
        let interval = format!("{:.0} to {:.0}", predicted.lower, predicted.upper);
        let beyond = match rate.extrapolated.is_empty() {
            true => String::new(),
            false => format!("  not measured: {}", rate.extrapolated.join(", ")),
        };
        let _ =
            writeln!(out, "  {:<30}{:>10.0}{interval:>22}{beyond}", rate.system, predicted.rate);
    }
    if !advice.reasons.is_empty() {
        let _ = writeln!(out, "\nWhat separates the first two");
    }
    for reason in advice.reasons.iter().take(LINES_EACH) {
        let _ = writeln!(out, "  {}", reason_words(reason.property, reason.factor));
    }
    match advice.changes.is_empty() {
        true => out.push_str("\nNo change of the application is expected to gain 5 % or more\n"),
        false => out.push_str("\nChanges of the application that would gain most\n"),
    }
    for change in advice.changes.iter().take(LINES_EACH) {
        let gain = format!("{} on {}", change_factor(change.factor), change.system);
        let _ = writeln!(out, "  {}: {gain}\n    {}", change.change.words(), change.command);
    }
    for caution in cautions(advice) {
        let _ = writeln!(out, "\n{caution}");
    }
    if advice.is_simulated {
        out.push_str(
            "\nSIMULATED: the model was fitted to simulated storage, not to measurements\n",
        );
    }
    out
}

/// The reasons for which the advice is unsafe.
#[must_use]
pub fn cautions(advice: &StorageAdvice) -> Vec<String> {
    let transfers = advice.unmeasured_transfers.map(|kind| {
        format!(
            "CAUTION: the application mostly {}s, but no measured run did; measure some that do",
            kind.word()
        )
    });
    let rule = advice.equal_rule.as_deref().map(equal_rule_words);
    rule.into_iter().chain(transfers).collect()
}

/// A warning about a model that is no better than `rule`.
#[must_use]
pub fn equal_rule_words(rule: &str) -> String {
    format!(
        "CAUTION: on workloads left out, the model decided no better than the rule `{rule}`; measure \
         more families, sizes and processes"
    )
}

/// The first sentence. It says if the application is beyond what was measured: the probability is that
/// of workloads among it.
#[must_use]
pub fn verdict(advice: &StorageAdvice) -> String {
    let percent = advice.probability * 100.0;
    let verdict = match &advice.verdict {
        StorageVerdict::Better { system, factor } => format!(
            "Use {system}: {} the rate of {}, faster with a probability of {percent:.0} %",
            times(*factor),
            advice.rates[1].system
        ),
        StorageVerdict::NoDifferenceSeen => format!(
            "No difference seen between {} and {}: the first is faster with a probability of \
             {percent:.0} %",
            advice.rates[0].system, advice.rates[1].system
        ),
    };
    let beyond: BTreeSet<&str> =
        advice.rates.iter().take(2).flat_map(|rate| &rate.extrapolated).copied().collect();
    if beyond.is_empty() {
        return verdict;
    }
    let letters: Vec<&str> = beyond.into_iter().collect();
    let verdict = format!(
        "{verdict}; this assumes that rates go on in the same way beyond the measured values of {}",
        letters.join(", ")
    );
    let [first, second] = [0, 1].map(|index| &advice.rates[index].never_varied);
    let same: Vec<&str> = first.iter().copied().filter(|letter| second.contains(letter)).collect();
    match same.is_empty() {
        true => verdict,
        false => format!("{verdict}, of which all runs had the same {}", same.join(", ")),
    }
}

/// A factor as a reader says it.
fn times(factor: f64) -> String {
    format!("{factor:.2} times")
}

/// A gain in words.
#[must_use]
pub fn change_factor(factor: f64) -> String {
    format!("expected {} the rate,", times(factor))
}

/// A reason in words.
#[must_use]
pub fn reason_words(property: &str, factor: f64) -> String {
    match factor > 1.0 {
        true => format!("{property}: {} in favour of the first", times(factor)),
        false => format!("{property}: {} in favour of the second", times(1.0 / factor)),
    }
}

/// The application in one line.
#[must_use]
pub fn application(advice: &StorageAdvice, features: &TraceFeatures) -> String {
    let run = &advice.variables;
    let percent = |part: u64, whole: u64| match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    };
    let pattern = match run.access_pattern {
        AccessPattern::Contiguous => "contiguous",
        AccessPattern::Noncontiguous => "with gaps",
    };
    let device = match run.device {
        StorageDevice::Hdd => "hard disks",
        StorageDevice::Ssd => "solid-state disks",
    };
    let counted = |number: u64, singular: &str, plural: &str| {
        format!("{number} {}", if number == 1 { singular } else { plural })
    };
    format!(
        "{}, {} of {} B, {pattern}, {:.0} % unaligned,\n  files: {}, {} metadata operations a process; {} \
         with {device}, {}, {}",
        counted(run.processes.into(), "process", "processes"),
        counted(features.requests(), "request", "requests"),
        run.request_bytes,
        percent(features.unaligned_requests, features.requests()),
        features.files,
        run.metadata_operations,
        counted(run.servers.into(), "server", "servers"),
        counted(run.metadata_servers.into(), "metadata server", "metadata servers"),
        counted(run.clients.into(), "client", "clients")
    )
}

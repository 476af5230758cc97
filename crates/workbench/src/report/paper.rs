// SPDX-License-Identifier: Apache-2.0
//! Paper page: Tables 1 and 2 and Figures 4 and 5 of MDWorkbench, measured here.
//!
//! Figures 1 to 3 of the paper are pseudocode and a drawing: `pattern` implements them, and there
//! is nothing to measure. Each sentence of agreement is derived from the results on the page.
//! Source: Kunkel and Markomanolis, Understanding Metadata Latency with MDWorkbench, 2018, §5.

use super::plot_frame::{draw, escape};
use super::plots::{COLORS, PlotSeries};
use super::{STYLE, TIMELINE_LEGEND, figure, plots, table, titled};
use crate::operation::Operation;
use crate::pace::Pacing;
use crate::result::{PhaseKind, PhaseResult, RunResult};
use crate::summary::{duration, rate};

/// The waiting factors of Table 1.
pub const WAITING_FACTORS: [f64; 2] = [0.0, 4.0];

/// Datasets per rank of the runs on one backend.
pub const DATASETS: [u32; 2] = [1, 10];

/// Points of one timeline.
const TIMELINE_POINTS_MAX: usize = 3_000;

/// From this latency on the paper draws every point.
const STRAGGLER_NS: u64 = 100_000_000;

/// The phases of Table 1 of one run.
struct ComparedPhases<'a> {
    result: &'a RunResult,
    precreate: &'a PhaseResult,
    unthrottled: &'a PhaseResult,
    throttled: &'a PhaseResult,
}

impl<'a> ComparedPhases<'a> {
    /// `None` if a phase is absent.
    fn of(result: &'a RunResult) -> Option<Self> {
        let find = |kind, waiting_factor| {
            let pacing = Pacing::Closed { waiting_factor };
            let mut phases = result.phases.iter();
            phases.find(|phase| phase.plan.kind == kind && phase.plan.pacing == pacing)
        };
        Some(Self {
            result,
            precreate: find(PhaseKind::Precreate, 0.0)?,
            unthrottled: find(PhaseKind::Benchmark, WAITING_FACTORS[0])?,
            throttled: find(PhaseKind::Benchmark, WAITING_FACTORS[1])?,
        })
    }

    fn virtual_rate(&self) -> f64 {
        self.throttled.create_rate() * self.throttled.virtual_factor()
    }

    fn median_create_ns(&self, phase: &PhaseResult) -> f64 {
        let create = phase.operation(Operation::Create);
        create.map_or(0.0, |create| create.latency().quantile_ns(0.5) as f64)
    }
}

/// The page for runs with one dataset per rank and with ten, of any number of backends.
#[must_use]
pub fn page(results: &[RunResult]) -> String {
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>MDWorkbench on this machine</title><style>{STYLE}</style></head><body><main>\
         <h1>Understanding Metadata Latency with MDWorkbench: the tables and figures on this \
         machine</h1><p>The paper measures parallel file systems with 8 to 100 nodes over a network; \
         here the ranks are threads of one machine. Figures 1 to 3 of the paper are pseudocode and a \
         drawing of the pattern, which these runs follow.</p>"
    );
    if let Some(first) = results.first() {
        let of = &first.environment;
        let machine =
            format!("{} × {}, {}, load {}", of.processors, of.cpu, of.kernel, of.load_before);
        draw(&mut out, format_args!("<p>Machine: {}.</p>", escape(&machine)));
    }
    let compared: Vec<ComparedPhases<'_>> = results.iter().filter_map(ComparedPhases::of).collect();
    table_1(&mut out, &compared);
    table_2(&mut out, &compared);
    figure_4(&mut out, &compared);
    figure_5(&mut out, &compared);
    for result in results {
        for warning in &result.warnings {
            let warning = escape(&titled(result, warning));
            draw(&mut out, format_args!("<p class=\"warning\">{warning}</p>"));
        }
    }
    out.push_str("</main></body></html>\n");
    out
}

fn heading(out: &mut String, title: &str) {
    draw(out, format_args!("<h2>{}</h2>", escape(title)));
}

fn paragraph(out: &mut String, text: &str) {
    draw(out, format_args!("<p>{}</p>", escape(text)));
}

fn table_1(out: &mut String, compared: &[ComparedPhases<'_>]) {
    heading(out, "Table 1: creates per second, precreation compared with the benchmark phase");
    let row = |of: &ComparedPhases<'_>| {
        let size = &of.result.options.size;
        vec![
            of.result.label().to_owned(),
            size.ranks.to_string(),
            size.datasets.to_string(),
            rate(of.precreate.create_rate()),
            rate(of.unthrottled.create_rate()),
            rate(of.virtual_rate()),
        ]
    };
    let header = ["system", "N", "D", "precreate", "benchmark T=0", "benchmark T=4, × 5"];
    table(out, &header, &[0], &compared.iter().map(row).collect::<Vec<_>>());
    let slower =
        |of: &&ComparedPhases<'_>| of.unthrottled.create_rate() < of.precreate.create_rate();
    let gains = |of: &&ComparedPhases<'_>| of.virtual_rate() > of.unthrottled.create_rate();
    let (all, slower) = (compared.len(), compared.iter().filter(slower).count());
    let gains = compared.iter().filter(gains).count();
    paragraph(
        out,
        &format!(
            "Paper: the benchmark phase at T=0 creates fewer objects a second than precreation on \
             all seven systems. Here: on {slower} of {all} runs, which {}. An iteration has four \
             calls of which one creates, so a quarter of the rate is expected where all four cost the \
             same.",
            verdict(slower, all)
        ),
    );
    paragraph(
        out,
        &format!(
            "Paper: the corrected rate at T=4 is higher than at T=0 on six of seven systems, since \
             requests queue less. Here: on {gains} of {all} runs, which {}. Threads that wait also \
             leave the processors to others, as nodes of a cluster do not.",
            verdict(gains, all)
        ),
    );
}

/// The words for a finding of the paper that holds here for `count` of `all` runs.
fn verdict(count: usize, all: usize) -> &'static str {
    match count {
        count if count == all => "agrees",
        0 => "does not agree",
        _ => "agrees in part",
    }
}

fn table_2(out: &mut String, compared: &[ComparedPhases<'_>]) {
    heading(out, "Table 2: rate, balance, slowest operation and third quartiles at T=0");
    let row = |of: &ComparedPhases<'_>| {
        let (size, phase) = (&of.result.options.size, of.unthrottled);
        let mut row = vec![of.result.label().to_owned()];
        row.extend([size.ranks.to_string(), size.datasets.to_string()]);
        row.extend([phase.iterations.to_string(), size.objects.to_string()]);
        row.extend([rate(phase.create_rate()), format!("{:.1}", 100.0 * phase.balance())]);
        row.push(duration(phase.max_ns() as f64));
        let third = [Operation::Read, Operation::Stat, Operation::Create, Operation::Delete];
        row.extend(third.map(|operation| duration(third_quartile(phase, operation))));
        row
    };
    let header = [
        "system",
        "N",
        "D",
        "I",
        "P",
        "creates/s",
        "balance %",
        "op max",
        "Q3 read",
        "Q3 stat",
        "Q3 create",
        "Q3 delete",
    ];
    table(out, &header, &[0], &compared.iter().map(row).collect::<Vec<_>>());
    let all = compared.len();
    let balanced = compared.iter().filter(|of| of.unthrottled.balance() >= 0.9).count();
    let is_stat_least = |of: &&ComparedPhases<'_>| {
        let stat = third_quartile(of.unthrottled, Operation::Stat);
        [Operation::Read, Operation::Create, Operation::Delete]
            .iter()
            .all(|operation| stat <= third_quartile(of.unthrottled, *operation))
    };
    let stat_least = compared.iter().filter(is_stat_least).count();
    let worst = compared.iter().map(|of| of.unthrottled.max_ns()).max().unwrap_or(0);
    paragraph(
        out,
        &format!(
            "Paper: most runs have a balance of about 90 % or more. Here: {balanced} of {all}, which \
             {}. Paper: stat has the smallest third quartile on most Lustre systems. Here: on \
             {stat_least} of {all} runs, which {}. Paper: single operations take up to 16 s. Here: up \
             to {}, without a network.",
            verdict(balanced, all),
            verdict(stat_least, all),
            duration(worst as f64)
        ),
    );
}

fn third_quartile(phase: &PhaseResult, operation: Operation) -> f64 {
    phase.operation(operation).map_or(0.0, |found| found.latency().quantile_ns(0.75) as f64)
}

/// One plot per system, of its run with one dataset, as in the paper.
fn figure_4(out: &mut String, compared: &[ComparedPhases<'_>]) {
    heading(out, "Figure 4: density of create operations");
    out.push_str("<div class=\"plots\">");
    let first = |of: &&ComparedPhases<'_>| of.result.options.size.datasets == DATASETS[0];
    let mut sentences = Vec::new();
    for of in compared.iter().filter(first) {
        let phases = [
            ("precreate", of.precreate),
            ("benchmark T=0", of.unthrottled),
            ("benchmark T=4", of.throttled),
        ];
        let creates = phases.iter().zip(COLORS).filter_map(|((name, phase), color)| {
            let latency = phase.operation(Operation::Create)?.latency();
            (latency.count > 0).then(|| PlotSeries { name: (*name).to_owned(), latency, color })
        });
        let series: Vec<PlotSeries<'_>> = creates.collect();
        let legend: Vec<String> = series.iter().map(|series| series.name.clone()).collect();
        let title = format!("Figure 4: creates on {}", of.result.label());
        figure(out, &title, &legend, &plots::density(&title, &series));
        let shift =
            of.median_create_ns(of.unthrottled) / of.median_create_ns(of.precreate).max(1.0);
        sentences.push(format!("{} × {shift:.2}", of.result.label()));
    }
    out.push_str("</div>");
    paragraph(
        out,
        &format!(
            "Paper: the change from precreation to the mixed load differs from system to system; on \
             Mistral it is minimal, on GPFS the distribution is another one. Here: the median create \
             at T=0 as a multiple of that in precreation is {}. Within a factor of 1.5 it is as on \
             Mistral, beyond that as on GPFS.",
            sentences.join(", ")
        ),
    );
}

fn figure_5(out: &mut String, compared: &[ComparedPhases<'_>]) {
    heading(out, "Figure 5: timelines of create operations");
    for of in compared {
        let datasets = of.result.options.size.datasets;
        out.push_str("<div class=\"pairs\">");
        // The letters of the paper: (a) and (c) precreate, (b) and (d) the benchmark.
        let letters = if datasets == DATASETS[0] { ['a', 'b'] } else { ['c', 'd'] };
        for (letter, phase) in letters.into_iter().zip([of.precreate, of.unthrottled]) {
            if let Some(svg) = plots::timeline(phase, Operation::Create, TIMELINE_POINTS_MAX) {
                let (label, plan) = (of.result.label(), phase.plan.name());
                let title = format!("Figure 5{letter}: {label}, D={datasets}, {plan}");
                figure(out, &title, &TIMELINE_LEGEND.map(str::to_owned), &svg);
            }
        }
        out.push_str("</div>");
    }
    let stragglers: usize = compared
        .iter()
        .flat_map(|of| [of.precreate, of.unthrottled])
        .filter_map(|phase| phase.operation(Operation::Create))
        .map(|create| create.slowest.iter().filter(|slow| slow.latency_ns >= STRAGGLER_NS).count())
        .sum();
    let agreement = if stragglers == 0 { "does not agree" } else { "agrees in part" };
    paragraph(
        out,
        &format!(
            "Paper: creates on Mistral stall every 5 s for about a second, by its servers' commits, \
             and GPFS has bands at 1 ms and at 10 to 50 ms. Here: {stragglers} creates take 0.1 s or \
             more, which {agreement}. Phases of a few seconds cannot show a period of 5 s, nothing is \
             synced, and locks of directories involve no second node. Every create of at least 0.1 s \
             is drawn, as in the paper, and (c) is of D=10 here, of D=1 there."
        ),
    );
}

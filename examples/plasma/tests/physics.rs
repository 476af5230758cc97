// SPDX-License-Identifier: Apache-2.0
//! The physics of the simulation, independent of its output.

use std::f64::consts::TAU;

use esker_comm::{Transport, threads};
use plasma::grid::Grid;
use plasma::{Energies, Setup, Simulation};

/// Runs `steps` steps and returns the results of `look` after each, on rank 0.
fn run<R: Send>(
    setup: &Setup,
    ranks: u32,
    steps: usize,
    look: impl Fn(&Simulation) -> R + Sync,
) -> Vec<R> {
    let seen = threads::run(ranks, ranks, |transport| {
        let mut simulation = Simulation::new(setup, transport)?;
        let mut seen = Vec::new();
        for _ in 0..steps {
            simulation.step(transport)?;
            if transport.rank().0 == 0 {
                seen.push(look(&simulation));
            }
        }
        Ok(seen)
    })
    .expect("a simulation");
    seen.into_iter().next().expect("rank 0")
}

/// Electrons at rest, displaced by a wave.
fn cold(magnetic: f64) -> Setup {
    Setup {
        grid: Grid { columns: 32, rows: 4, width: TAU, height: 1.0 },
        electrons: 32 * 4 * 64,
        magnetic: [0.0, 0.0, magnetic],
        drift: 0.0,
        thermal: 0.0,
        displacement: 0.01,
        step: 0.05,
        seed: 1,
    }
}

/// The frequency of a signal, from its zero crossings.
fn frequency(signal: &[f64], step: f64) -> f64 {
    let crossings: Vec<f64> = signal
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[0] * pair[1] < 0.0)
        .map(|(index, pair)| index as f64 + pair[0] / (pair[0] - pair[1]))
        .collect();
    let halves = crossings.len() - 1;
    std::f64::consts::PI * halves as f64 / ((crossings[halves] - crossings[0]) * step)
}

/// A displaced plasma oscillates at the plasma frequency; across a magnetic field, at the upper
/// hybrid frequency √(ω² + Ω²).
#[test]
fn displaced_electrons_swing_at_the_frequencies_of_theory() {
    for (magnetic, wanted) in [(0.0, 1.0), (1.0, 2.0_f64.sqrt()), (2.0, 5.0_f64.sqrt())] {
        let setup = cold(magnetic);
        // The component of the field with the shape of the displacement.
        let columns = setup.grid.columns;
        let shape = |index: usize| (TAU * (index % columns) as f64 / columns as f64).sin();
        let signal = run(&setup, 2, 600, |simulation| {
            let field = simulation.field().x.iter().enumerate();
            field.map(|(index, x)| x * shape(index)).sum::<f64>()
        });
        let signal: Vec<f64> = signal.iter().map(|x| x - mean(&signal)).collect();
        let found = frequency(&signal, setup.step);
        assert!((found / wanted - 1.0).abs() < 0.01, "B = {magnetic}: {found}, not {wanted}");
    }
}

fn mean(signal: &[f64]) -> f64 {
    signal.iter().sum::<f64>() / signal.len() as f64
}

fn streams() -> Setup {
    Setup { electrons: 50_000, ..Setup::two_streams() }
}

#[test]
fn energy_charge_and_electrons_are_kept() {
    let setup = streams();
    let energies: Vec<Energies> = run(&setup, 3, 400, Simulation::energies);
    let first = energies[0].total();
    let most = energies.iter().map(|now| (now.total() / first - 1.0).abs()).fold(0.0, f64::max);
    println!("energy changed by up to {most:.4}");
    for (step, now) in energies.iter().enumerate() {
        assert_eq!(now.electrons, setup.electrons, "step {step}");
        assert!(now.charge.abs() < 1e-9, "step {step}: charge {}", now.charge);
        let change = now.total() / first - 1.0;
        assert!(change.abs() < 0.01, "step {step}: energy changed by {change}");
    }
}

/// Two streams are unstable: the fastest wave grows at the rate ω / √8 (its field energy at twice
/// that).
#[test]
fn two_streams_grow_as_theory_says() {
    // The wave with wave number √(3/8) ω / v grows fastest; this plane fits only that one.
    let width = TAU / (3.0_f64 / 8.0).sqrt();
    let setup = Setup {
        grid: Grid { columns: 64, rows: 4, width, height: 1.0 },
        electrons: 40_000,
        magnetic: [0.0; 3],
        thermal: 0.0,
        displacement: 1e-5,
        ..Setup::two_streams()
    };
    let energies = run(&setup, 2, 200, |simulation| simulation.energies().field);
    let (from, to) = (100, 180);
    let rate = (energies[to] / energies[from]).ln() / (2.0 * setup.step * (to - from) as f64);
    let wanted = 1.0 / 8.0_f64.sqrt();
    assert!((rate / wanted - 1.0).abs() < 0.05, "{rate}, not {wanted}");
}

/// For any number of ranks, every electron is on exactly one of them and moves the same way.
#[test]
fn electrons_do_not_depend_on_the_number_of_ranks() {
    let setup = Setup { electrons: 5_000, ..Setup::two_streams() };
    let run = |ranks: u32| {
        let parts = threads::run(ranks, ranks, |transport| {
            let mut simulation = Simulation::new(&setup, transport)?;
            let mut moved = 0;
            for _ in 0..60 {
                let before = simulation.electrons().len();
                simulation.step(transport)?;
                moved += usize::from(simulation.electrons().len() != before);
            }
            assert!(ranks == 1 || moved > 0, "electrons move between ranks");
            Ok(simulation.electrons().to_vec())
        });
        let mut electrons = parts.expect("a simulation").concat();
        electrons.sort_by_key(|electron| electron.id);
        electrons
    };
    let alone = run(1);
    assert_eq!(alone.len(), 5_000);
    for ranks in [2, 3, 8] {
        let together = run(ranks);
        assert_eq!(together.len(), alone.len());
        for (a, b) in alone.iter().zip(&together) {
            assert_eq!(a.id, b.id);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
            assert!(near(a.velocity[0], b.velocity[0]), "{ranks} ranks: {a:?}, {b:?}");
            assert!(near(a.place[0], b.place[0]), "{ranks} ranks: {a:?}, {b:?}");
        }
    }
}

#[test]
fn too_many_ranks_and_too_long_steps_are_refused() {
    let refused = |setup: &Setup, ranks: u32| {
        threads::run(ranks, ranks, |transport| {
            let mut simulation = Simulation::new(setup, transport)?;
            simulation.step(transport)
        })
        .expect_err("refused")
    };
    assert!(refused(&cold(0.0), 33).to_string().contains("33 ranks"));
    let fast = Setup { drift: 100.0, ..cold(0.0) };
    assert!(refused(&fast, 4).to_string().contains("steps shorter"));
}

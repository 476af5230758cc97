// SPDX-License-Identifier: Apache-2.0
//! Simulation: one rank's electrons and the field of all electrons, step by step.

use std::ops::Range;

use esker_base::{Error, Kind, Result};
use esker_comm::Transport;

use crate::boris::pushed;
use crate::electron::Electron;
use crate::exchange;
use crate::grid::wrapped;
use crate::poisson::{Field, Poisson};
use crate::setup::Setup;

/// One rank of a simulation. All ranks make every call that takes a transport.
#[derive(Debug)]
pub struct Simulation {
    setup: Setup,
    poisson: Poisson,
    /// The ranks' slabs: rank r has x from `slabs[r]` to `slabs[r + 1]`.
    slabs: Vec<f64>,
    me: usize,
    electrons: Vec<Electron>,
    density: Vec<f64>,
    field: Field,
    energies: Energies,
    steps: u64,
}

/// Sums over all ranks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energies {
    /// Kinetic energy of the electrons.
    pub kinetic: f64,
    /// Energy of the field.
    pub field: f64,
    /// Total number of electrons.
    pub electrons: u64,
    /// Total charge on the grid, including the ions: 0.
    pub charge: f64,
}

impl Energies {
    /// Kinetic plus field energy.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.kinetic + self.field
    }
}

impl Simulation {
    /// This rank's share of `setup`, at the start.
    ///
    /// # Errors
    /// `Invalid` for an impossible setup; errors of the transport.
    pub fn new<T: Transport + ?Sized>(setup: &Setup, transport: &mut T) -> Result<Self> {
        let ranks = transport.size() as usize;
        setup.check(transport.size())?;
        let columns = setup.grid.columns;
        let cell = setup.grid.width / columns as f64;
        let mut slabs: Vec<f64> =
            (0..=ranks).map(|rank| (rank * columns / ranks) as f64 * cell).collect();
        slabs[ranks] = setup.grid.width;
        let me = transport.rank().index();
        let mine = slabs[me]..slabs[me + 1];
        let electrons = (0..setup.electrons)
            .map(|id| setup.electron(id))
            .filter(|electron| mine.contains(&electron.place[0]))
            .collect();
        let mut simulation = Self {
            poisson: Poisson::new(setup.grid),
            setup: setup.clone(),
            slabs,
            me,
            electrons,
            density: Vec::new(),
            field: Field::default(),
            energies: Energies::default(),
            steps: 0,
        };
        simulation.solve(transport)?;
        // Velocities are those of half a step before positions.
        simulation.push(-0.5 * setup.step);
        Ok(simulation)
    }

    /// One time step: updates velocities and positions, migrates electrons, solves for the field.
    ///
    /// # Errors
    /// `Invalid` if an electron is so fast that it crosses a whole slab: use shorter steps; errors
    /// of the transport.
    pub fn step<T: Transport + ?Sized>(&mut self, transport: &mut T) -> Result<()> {
        let kinetic = self.push(self.setup.step);
        self.energies.kinetic = kinetic;
        let count = self.electrons.len();
        let mut sums = [kinetic, count as f64];
        exchange::sum(transport, &mut sums)?;
        self.energies = Energies {
            kinetic: sums[0],
            field: self.field.energy(&self.setup.grid),
            electrons: sums[1] as u64,
            charge: self.density.iter().sum::<f64>() * self.setup.grid.cell_area(),
        };
        self.advance();
        self.migrate(transport)?;
        self.solve(transport)?;
        self.steps += 1;
        Ok(())
    }

    /// This rank's electrons.
    #[must_use]
    pub fn electrons(&self) -> &[Electron] {
        &self.electrons
    }

    /// The present field of all electrons.
    #[must_use]
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// Sums at the start of the last step; all 0 before the first.
    #[must_use]
    pub fn energies(&self) -> Energies {
        self.energies
    }

    /// Number of steps done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Advances velocities by the time `step`. Returns the kinetic energy at the middle, to second
    /// order: from the product of the velocities before and after.
    fn push(&mut self, step: f64) -> f64 {
        let mut products = 0.0;
        for electron in &mut self.electrons {
            let mut electric = [0.0; 2];
            for (point, share) in self.setup.grid.shares(electron.place[0], electron.place[1]) {
                electric[0] += share * self.field.x[point];
                electric[1] += share * self.field.y[point];
            }
            let before = electron.velocity;
            electron.velocity = pushed(before, electric, self.setup.magnetic, step);
            products += before.iter().zip(&electron.velocity).map(|(a, b)| a * b).sum::<f64>();
        }
        0.5 * products * self.setup.weight()
    }

    /// Moves every electron by its velocity.
    fn advance(&mut self) {
        for electron in &mut self.electrons {
            for (place, velocity) in electron.place.iter_mut().zip(electron.velocity) {
                *place += velocity * self.setup.step;
            }
            electron.place[1] = wrapped(electron.place[1], self.setup.grid.height);
        }
    }

    /// Sends electrons that left the slab to the neighbours, and receives theirs.
    fn migrate<T: Transport + ?Sized>(&mut self, transport: &mut T) -> Result<()> {
        let slab = self.slab();
        let width = self.setup.grid.width;
        if transport.size() == 1 {
            for electron in &mut self.electrons {
                electron.place[0] = wrapped(electron.place[0], width);
            }
            return Ok(());
        }
        let (mut left, mut right) = (Vec::new(), Vec::new());
        self.electrons.retain_mut(|electron| {
            let x = electron.place[0];
            if slab.contains(&x) {
                return true;
            }
            electron.place[0] = wrapped(x, width);
            if x < slab.start {
                left.push(*electron)
            } else {
                right.push(*electron)
            }
            false
        });
        let arrived = exchange::swap(transport, &left, &right)?;
        if let Some(fast) = arrived.iter().find(|electron| !slab.contains(&electron.place[0])) {
            let what =
                format!("electron {} passed a slab in one step: make steps shorter", fast.id);
            return Err(Error::new(Kind::Invalid, what));
        }
        self.electrons.extend(arrived);
        Ok(())
    }

    fn slab(&self) -> Range<f64> {
        self.slabs[self.me]..self.slabs[self.me + 1]
    }

    /// Spreads all electrons over the grid and solves for the field.
    fn solve<T: Transport + ?Sized>(&mut self, transport: &mut T) -> Result<()> {
        let grid = &self.setup.grid;
        self.density.clear();
        self.density.resize(grid.points(), 0.0);
        let charge = -self.setup.weight() / grid.cell_area();
        for electron in &self.electrons {
            for (point, share) in grid.shares(electron.place[0], electron.place[1]) {
                self.density[point] += charge * share;
            }
        }
        exchange::sum(transport, &mut self.density)?;
        // Ions at rest have density 1 everywhere.
        self.density.iter_mut().for_each(|density| *density += 1.0);
        self.field = self.poisson.field(&self.density);
        Ok(())
    }
}

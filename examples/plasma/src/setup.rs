// SPDX-License-Identifier: Apache-2.0
//! Setup: the parameters of the simulation, and the initial state of each electron.

use std::f64::consts::TAU;

use esker_base::{Error, Kind, Random, Result};

use crate::electron::Electron;
use crate::grid::{Grid, wrapped};

/// The parameters of the simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The plane.
    pub grid: Grid,
    /// Total number of electrons.
    pub electrons: u64,
    /// The magnetic field, whose strength is also the cyclotron frequency.
    pub magnetic: [f64; 3],
    /// Half of the electrons drift in x with this velocity, half in the opposite direction.
    pub drift: f64,
    /// The thermal velocity in each direction.
    pub thermal: f64,
    /// Amplitude of the initial displacement in x, a sine over the plane's width.
    pub displacement: f64,
    /// A step in time.
    pub step: f64,
    /// Seed of the velocities.
    pub seed: u64,
}

impl Setup {
    /// Two streams of electrons that pass through each other along a magnetic field: waves grow out
    /// of the noise, trap electrons and accelerate some of them.
    #[must_use]
    pub fn two_streams() -> Self {
        Self {
            grid: Grid { columns: 64, rows: 16, width: 4.0 * TAU, height: TAU },
            electrons: 100_000,
            magnetic: [0.5, 0.0, 0.0],
            drift: 1.0,
            thermal: 0.2,
            displacement: 0.001,
            step: 0.1,
            seed: 1,
        }
    }

    /// Returns an error unless `ranks` ranks can simulate this.
    ///
    /// # Errors
    /// `Invalid` names the problem.
    pub fn check(&self, ranks: u32) -> Result<()> {
        let invalid = |what: String| Err(Error::new(Kind::Invalid, what));
        if ranks as usize > self.grid.columns {
            let columns = self.grid.columns;
            return invalid(format!("{ranks} ranks share {columns} columns of cells"));
        }
        let lengths = [self.grid.width, self.grid.height, self.step];
        if self.grid.points() == 0
            || self.electrons == 0
            || !lengths.iter().all(|length| *length > 0.0)
        {
            return invalid("plane, step and number of electrons must be positive".to_owned());
        }
        Ok(())
    }

    /// Number of real electrons that each simulated one represents: the mean density is 1.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.grid.width * self.grid.height / self.electrons as f64
    }

    /// The initial state of electron `id`, the same for every number of ranks.
    ///
    /// Positions are spread more evenly than random ones, in x evenly and in y by the reversed bits
    /// of the id, so that noise is small (a "quiet start", Birdsall and Langdon §16).
    #[must_use]
    pub fn electron(&self, id: u64) -> Electron {
        let mut random = Random::from_seed(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ id);
        // Pairs of electrons start at one position, drifting in opposite directions.
        let pair = id / 2;
        let x = (pair as f64 + 0.5) / self.electrons.div_ceil(2) as f64 * self.grid.width;
        let y = unit(pair.reverse_bits()) * self.grid.height;
        let x = wrapped(x + self.displacement * (TAU * x / self.grid.width).sin(), self.grid.width);
        let drift = if id.is_multiple_of(2) { self.drift } else { -self.drift };
        let mut velocity = [(); 3].map(|()| self.thermal * normal(&mut random));
        velocity[0] += drift;
        Electron { id, place: [x, y], velocity }
    }
}

/// A number from 0 to 1, from the high bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// A normally distributed number (Box and Muller, 1958).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random.next_u64())).ln()).sqrt();
    radius * (TAU * unit(random.next_u64())).cos()
}

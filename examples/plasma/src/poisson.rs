// SPDX-License-Identifier: Apache-2.0
//! Poisson: the electric field of charges on a periodic grid, solved exactly in Fourier space.
//!
//! For each wave k of the charge density ρ the field is E = −i k ρ / k²; the mean charge has no
//! field. The transforms are plain sums over rows and columns: a grid of some thousand points needs
//! no faster ones. Every rank computes the same sums, and so has the same field to the last bit.

use std::f64::consts::TAU;

use crate::grid::Grid;

/// A solver for one grid.
#[derive(Clone, Debug)]
pub struct Poisson {
    grid: Grid,
    across: Waves,
    along: Waves,
}

/// The field at every point.
#[derive(Clone, Debug, Default)]
pub struct Field {
    /// Its component in x.
    pub x: Vec<f64>,
    /// Its component in y.
    pub y: Vec<f64>,
}

impl Field {
    /// The energy in the field.
    #[must_use]
    pub fn energy(&self, grid: &Grid) -> f64 {
        let sum: f64 = self.x.iter().zip(&self.y).map(|(x, y)| x * x + y * y).sum();
        0.5 * sum * grid.cell_area()
    }
}

/// The waves that fit a circle of `count` points.
#[derive(Clone, Debug)]
struct Waves {
    /// (cosine, sine) of each part of the circle.
    circle: Vec<(f64, f64)>,
    /// Wave numbers; 0 for the wave of two points, whose slope a grid cannot represent.
    numbers: Vec<f64>,
}

impl Waves {
    fn new(count: usize, length: f64) -> Self {
        let circle = (0..count).map(|part| {
            let angle = TAU * part as f64 / count as f64;
            (angle.cos(), angle.sin())
        });
        let number = |wave: usize| {
            let signed = match (2 * wave).cmp(&count) {
                std::cmp::Ordering::Less => wave as f64,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Greater => wave as f64 - count as f64,
            };
            TAU * signed / length
        };
        Self { circle: circle.collect(), numbers: (0..count).map(number).collect() }
    }

    /// Transforms one line in place: `sign` −1 is to waves; +1 is back, without the factor 1 /
    /// count.
    fn transform(&self, line: &mut [(f64, f64)], sign: f64) {
        let count = self.circle.len();
        let before = line.to_vec();
        for (wave, sum) in line.iter_mut().enumerate() {
            *sum = (0.0, 0.0);
            let mut part = 0;
            for (real, imaginary) in &before {
                let (cosine, sine) = self.circle[part];
                let sine = sine * sign;
                sum.0 += real * cosine - imaginary * sine;
                sum.1 += real * sine + imaginary * cosine;
                part += wave;
                if part >= count {
                    part -= count;
                }
            }
        }
    }
}

impl Poisson {
    /// A solver for `grid`.
    #[must_use]
    pub fn new(grid: Grid) -> Self {
        let across = Waves::new(grid.columns, grid.width);
        let along = Waves::new(grid.rows, grid.height);
        Self { grid, across, along }
    }

    /// The field of the charge density `density` at every point.
    ///
    /// # Panics
    /// Unless there is one density for each point.
    #[must_use]
    pub fn field(&self, density: &[f64]) -> Field {
        assert_eq!(density.len(), self.grid.points(), "one density for each point");
        let mut waves: Vec<(f64, f64)> = density.iter().map(|value| (*value, 0.0)).collect();
        self.transform(&mut waves, -1.0);
        let scale = 1.0 / self.grid.points() as f64;
        // Both components are real, so one complex transform brings back both.
        for (index, wave) in waves.iter_mut().enumerate() {
            let k = (
                self.across.numbers[index % self.grid.columns],
                self.along.numbers[index / self.grid.columns],
            );
            let square = k.0 * k.0 + k.1 * k.1;
            if square == 0.0 {
                *wave = (0.0, 0.0);
                continue;
            }
            // (kx + i ky) times −i ρ / k².
            let (real, imaginary) = (wave.1 * scale / square, -wave.0 * scale / square);
            *wave = (k.0 * real - k.1 * imaginary, k.0 * imaginary + k.1 * real);
        }
        self.transform(&mut waves, 1.0);
        let (x, y) = waves.into_iter().unzip();
        Field { x, y }
    }

    fn transform(&self, points: &mut [(f64, f64)], sign: f64) {
        for row in points.chunks_exact_mut(self.grid.columns) {
            self.across.transform(row, sign);
        }
        let mut column = vec![(0.0, 0.0); self.grid.rows];
        for first in 0..self.grid.columns {
            let places = (first..points.len()).step_by(self.grid.columns);
            for (value, place) in column.iter_mut().zip(places.clone()) {
                *value = points[place];
            }
            self.along.transform(&mut column, sign);
            for (value, place) in column.iter().zip(places) {
                points[place] = *value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The divergence of a charge wave's field is the wave itself.
    #[test]
    fn waves_of_charge_have_the_field_of_theory() {
        let grid = Grid { columns: 16, rows: 12, width: 10.0, height: 7.0 };
        let poisson = Poisson::new(grid);
        let place = |index: usize| {
            let (i, j) = (index % grid.columns, index / grid.columns);
            (i as f64 * grid.width / 16.0, j as f64 * grid.height / 12.0)
        };
        for (m, n) in [(1, 0), (0, 1), (3, 2), (2, -5), (7, 0)] {
            let k = (TAU * f64::from(m) / grid.width, TAU * f64::from(n) / grid.height);
            let square = k.0 * k.0 + k.1 * k.1;
            let phase = |index| k.0 * place(index).0 + k.1 * place(index).1 + 0.3;
            let density: Vec<f64> = (0..grid.points()).map(|i| 2.0 + phase(i).cos()).collect();
            let field = poisson.field(&density);
            for index in 0..grid.points() {
                let wanted = phase(index).sin() / square;
                assert!((field.x[index] - k.0 * wanted).abs() < 1e-12, "({m}, {n}) at {index}");
                assert!((field.y[index] - k.1 * wanted).abs() < 1e-12, "({m}, {n}) at {index}");
            }
            let energy = 0.25 * grid.width * grid.height / square;
            assert!((field.energy(&grid) / energy - 1.0).abs() < 1e-12);
        }
    }
}

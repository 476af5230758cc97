// SPDX-License-Identifier: Apache-2.0
//! Grid: the plane's cells, and the distribution of an electron's charge over the four nearest
//! points.

/// A periodic plane of cells. Point (i, j) is at (i · dx, j · dy), with index j · columns + i.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Cells in x.
    pub columns: usize,
    /// Cells in y.
    pub rows: usize,
    /// Extent in x.
    pub width: f64,
    /// Extent in y.
    pub height: f64,
}

impl Grid {
    /// Number of points.
    #[must_use]
    pub fn points(&self) -> usize {
        self.columns * self.rows
    }

    /// The area of a cell.
    #[must_use]
    pub fn cell_area(&self) -> f64 {
        self.width * self.height / self.points() as f64
    }

    /// The four points around (x, y), which must be on the plane, and their shares, which add up to
    /// 1 and are linear in each direction.
    #[inline]
    #[must_use]
    pub fn shares(&self, x: f64, y: f64) -> [(usize, f64); 4] {
        let (left, right, to_right) = neighbours(x / self.width, self.columns);
        let (below, above, to_above) = neighbours(y / self.height, self.rows);
        let (below, above) = (below * self.columns, above * self.columns);
        [
            (below + left, (1.0 - to_above) * (1.0 - to_right)),
            (below + right, (1.0 - to_above) * to_right),
            (above + left, to_above * (1.0 - to_right)),
            (above + right, to_above * to_right),
        ]
    }
}

/// The points before and after `part` of a circle of `count` points, and the distance from the
/// first.
#[inline]
fn neighbours(part: f64, count: usize) -> (usize, usize, f64) {
    let place = part * count as f64;
    // Rounding may give the end, which is the start again.
    let first = (place as usize).min(count - 1);
    let second = if first + 1 == count { 0 } else { first + 1 };
    (first, second, place - first as f64)
}

/// The equivalent position on a circle of `length`, starting at 0.
#[inline]
#[must_use]
pub fn wrapped(place: f64, length: f64) -> f64 {
    let inside = place.rem_euclid(length);
    // A tiny negative number is rounded to the length itself.
    if inside < length { inside } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { columns: 8, rows: 4, width: 16.0, height: 4.0 };

    #[test]
    fn shares_add_up_and_keep_the_centre() {
        for (x, y) in [(0.0, 0.0), (3.0, 1.5), (15.999, 3.999), (15.0, 0.25)] {
            let shares = GRID.shares(x, y);
            let sum: f64 = shares.iter().map(|share| share.1).sum();
            assert!((sum - 1.0).abs() < 1e-12);
        }
        let shares = GRID.shares(3.0, 1.5);
        assert_eq!(shares, [(9, 0.25), (10, 0.25), (17, 0.25), (18, 0.25)]);
        // The last cell borders on the first point.
        assert_eq!(GRID.shares(15.0, 3.0), [(31, 0.5), (24, 0.5), (7, 0.0), (0, 0.0)]);
    }

    #[test]
    fn places_wrap() {
        assert_eq!(wrapped(17.0, 16.0), 1.0);
        assert_eq!(wrapped(-1.0, 16.0), 15.0);
        assert!(wrapped(-1e-30, 16.0) < 16.0);
    }
}

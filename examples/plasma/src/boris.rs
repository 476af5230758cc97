// SPDX-License-Identifier: Apache-2.0
//! Boris: one step of an electron's velocity in an electric and a magnetic field.
//!
//! Half of the electric push, a rotation around the magnetic field, the other half. The rotation
//! keeps the speed exactly, whatever the step.
//! Source: Boris, Relativistic plasma simulation, 1970; Birdsall and Langdon §4-3.

/// The velocity after `step` of an electron (charge −1, mass 1) in the field `electric`, which is
/// in the plane, and the field `magnetic`.
#[inline]
#[must_use]
pub fn pushed(velocity: [f64; 3], electric: [f64; 2], magnetic: [f64; 3], step: f64) -> [f64; 3] {
    let half = -0.5 * step;
    let kick = [half * electric[0], half * electric[1], 0.0];
    let before = sum(velocity, kick);
    let tangent = magnetic.map(|component| half * component);
    let scale = 2.0 / (1.0 + tangent.iter().map(|component| component * component).sum::<f64>());
    let middle = sum(before, cross(before, tangent));
    let after = sum(before, cross(middle, tangent.map(|component| scale * component)));
    sum(after, kick)
}

#[inline]
fn sum(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}

#[inline]
fn cross(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A magnetic field turns an electron counterclockwise, seen along the field, at its cyclotron
    /// frequency to second order in the step, and never changes its speed.
    #[test]
    fn electrons_gyrate() {
        let (magnetic, step) = (2.0, 0.01);
        let steps = (std::f64::consts::TAU / magnetic / step).round() as usize;
        let mut velocity = [1.0, 0.0, 0.5];
        for number in 0..steps {
            velocity = pushed(velocity, [0.0, 0.0], [0.0, 0.0, magnetic], step);
            if number == steps / 4 {
                assert!(velocity[1] > 0.99, "{velocity:?}");
            }
        }
        assert!((velocity[0].hypot(velocity[1]) - 1.0).abs() < 1e-12);
        assert!((velocity[0] - 1.0).abs() < 1e-3 && velocity[1].abs() < 0.01, "{velocity:?}");
        assert_eq!(velocity[2], 0.5);
    }

    /// In crossed fields an electron drifts with E × B / B².
    #[test]
    fn electrons_drift_in_crossed_fields() {
        let (electric, magnetic, step, steps) = ([0.0, 0.3], 2.0, 0.01, 100_000);
        let mut velocity = [0.0; 3];
        let mut way = [0.0; 2];
        for _ in 0..steps {
            velocity = pushed(velocity, electric, [0.0, 0.0, magnetic], step);
            way = [way[0] + velocity[0] * step, way[1] + velocity[1] * step];
        }
        let time = step * f64::from(steps);
        assert!((way[0] / time - 0.3 / 2.0).abs() < 1e-3, "{way:?}");
        assert!((way[1] / time).abs() < 1e-3, "{way:?}");
    }
}

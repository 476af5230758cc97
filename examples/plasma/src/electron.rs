// SPDX-License-Identifier: Apache-2.0
//! Electron: the state of one electron, and the record that is written of it.

/// Bytes of a record: as in the thesis' benchmark, 8 of key and 40 of value.
pub const RECORD_BYTES: usize = KEY_BYTES + STATE_BYTES;

/// Bytes of an electron's number.
pub const KEY_BYTES: usize = 8;

/// Bytes of an electron's position and velocity.
pub const STATE_BYTES: usize = 40;

/// One electron.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Electron {
    /// Its number, which never changes.
    pub id: u64,
    /// Its position on the plane.
    pub place: [f64; 2],
    /// Its velocity, half a step earlier.
    pub velocity: [f64; 3],
}

impl Electron {
    /// Its number, big-endian so that numbers sort as bytes.
    #[must_use]
    pub fn key(&self) -> [u8; KEY_BYTES] {
        self.id.to_be_bytes()
    }

    /// Position and velocity, as five little-endian numbers.
    #[must_use]
    pub fn state(&self) -> [u8; STATE_BYTES] {
        let mut state = [0; STATE_BYTES];
        let numbers = self.place.iter().chain(&self.velocity);
        for (bytes, number) in state.as_chunks_mut().0.iter_mut().zip(numbers) {
            *bytes = number.to_le_bytes();
        }
        state
    }

    /// The electron with this key and state; `None` if their lengths are wrong.
    #[must_use]
    pub fn parse(key: &[u8], state: &[u8]) -> Option<Self> {
        let id = u64::from_be_bytes(key.try_into().ok()?);
        let state: &[u8; STATE_BYTES] = state.try_into().ok()?;
        let mut numbers = state.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        let mut next = || numbers.next().expect("five numbers");
        Some(Self { id, place: [next(), next()], velocity: [next(), next(), next()] })
    }

    /// The square of its speed.
    #[must_use]
    pub fn speed_squared(&self) -> f64 {
        self.velocity.iter().map(|component| component * component).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let electron = Electron { id: 7, place: [1.5, -0.0], velocity: [1e-300, f64::MAX, 3.0] };
        assert_eq!(Electron::parse(&electron.key(), &electron.state()), Some(electron));
        assert_eq!(Electron::parse(&[0; 7], &electron.state()), None);
        assert_eq!(Electron::parse(&electron.key(), &[0; 41]), None);
    }
}

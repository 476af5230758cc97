// SPDX-License-Identifier: Apache-2.0
//! Seat file: a file that is at another seat of a live namespace than its name.
//!
//! Layout: docs/format/inode.md. `ops/seat_file.rs` makes and removes such names.

use crate::inode::DirId;

/// Bits of [`SeatFile::number`].
const NUMBER_BITS: u32 = 48;

/// A file that is at another seat of a live namespace than its name. The file has a name of its own
/// for each such name, among the seat roots of its seat ([`DirId::SEAT_ROOTS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeatFile {
    /// The seat that has the file.
    pub seat: u16,
    /// The identity of the file.
    pub id: u128,
    /// A random number, of 48 bits, that the name at the other seat and the one among the seat roots
    /// share. Nobody guesses it.
    number: u64,
}

impl SeatFile {
    /// The file `id` of `seat`, with a new name of its own. `random` is a random number.
    #[must_use]
    pub fn new(seat: u16, id: u128, random: u64) -> Self {
        Self { seat, id, number: random >> (u64::BITS - NUMBER_BITS) }
    }

    /// The file `id` of a record whose device number is `device`; `None` if that gives no seat.
    #[must_use]
    pub fn of_device(id: u128, device: u64) -> Option<Self> {
        let seat = (device as u16).checked_sub(1)?;
        Some(Self { seat, id, number: device >> u16::BITS })
    }

    /// The device number of the record of the name.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.number << u16::BITS | (u64::from(self.seat) + 1)
    }

    /// The name of the file among the seat roots of its seat.
    #[must_use]
    pub fn root_name(&self) -> String {
        format!("{}.{:012x}", DirId(self.id), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for (seat, random) in [(0, 0), (3, u64::MAX), (0x7fff, 0x0123_4567_89ab_cdef)] {
            let file = SeatFile::new(seat, 7, random);
            assert_eq!(SeatFile::of_device(7, file.device()), Some(file));
        }
        assert_eq!(SeatFile::of_device(7, 1 << 16), None);
        assert_eq!(
            SeatFile::new(1, 255, u64::MAX).root_name(),
            "000000000000000000000000000000ff.ffffffffffff"
        );
    }
}

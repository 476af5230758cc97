// SPDX-License-Identifier: Apache-2.0
//! Seat placement: chooses the seat of a new directory by the power of two choices.
//!
//! A server knows about how many entries each seat has, and asks only the two that it has drawn, when
//! what it knows of them is old.
//! Source: IndexFS, thesis §2.1 (the one of two random servers that has fewer entries; servers cache
//! these numbers).

use std::time::Duration;

use esker_base::{Clock, Random};
use parking_lot::Mutex;

/// Age of the known number of entries of a seat from which it is asked again.
const ENTRIES_AGE_MAX: Duration = Duration::from_secs(5);
/// Entries of a seat whose server does not answer: any other is chosen.
const UNKNOWN_ENTRIES: u64 = u64::MAX / 2;

/// The known numbers of entries of all seats.
#[derive(Debug)]
pub(super) struct SeatPlacement {
    own: u16,
    loads: Mutex<Vec<SeatLoad>>,
}

/// About how many entries a seat has.
#[derive(Clone, Copy, Debug, Default)]
struct SeatLoad {
    entries: u64,
    /// Time of the last question by the monotonic clock; 0 before the first.
    asked_ns: u64,
}

impl SeatPlacement {
    /// Nothing is known of the `seats`, as the server of `own` sees them.
    pub fn new(own: u16, seats: usize) -> Self {
        Self { own, loads: Mutex::new(vec![SeatLoad::default(); seats]) }
    }

    /// Returns the one of two seats drawn by `random` that has fewer entries, and counts a directory
    /// for it. `ask` returns the entries of a seat, or `None` if its server does not answer.
    pub fn choose(
        &self,
        random: &mut Random,
        clock: &dyn Clock,
        ask: impl Fn(u16) -> Option<u64>,
    ) -> u16 {
        let seats = self.loads.lock().len() as u64;
        let first = random.below(seats);
        let second = (first + 1 + random.below(seats - 1)) % seats;
        let drawn = [first, second].map(|seat| u16::try_from(seat).expect("at most SEATS_MAX"));
        for seat in drawn {
            if self.begins_to_ask(seat, clock) {
                self.set(seat, ask(seat), clock);
            }
        }
        let mut loads = self.loads.lock();
        let chosen = drawn.into_iter().min_by_key(|seat| loads[usize::from(*seat)].entries);
        let chosen = chosen.filter(|seat| loads[usize::from(*seat)].entries < UNKNOWN_ENTRIES);
        let chosen = chosen.unwrap_or(self.own);
        loads[usize::from(chosen)].entries += 1;
        chosen
    }

    /// Records that the server of `seat` does not answer.
    pub fn set_unanswering(&self, seat: u16, clock: &dyn Clock) {
        self.set(seat, None, clock);
    }

    /// True if the number of `seat` is old. Others use it as it is until the answer is there.
    fn begins_to_ask(&self, seat: u16, clock: &dyn Clock) -> bool {
        let (mut loads, now_ns) = (self.loads.lock(), clock.monotonic_ns());
        let load = &mut loads[usize::from(seat)];
        let age_ns = now_ns.saturating_sub(load.asked_ns);
        let is_old = load.asked_ns == 0 || u128::from(age_ns) > ENTRIES_AGE_MAX.as_nanos();
        if is_old {
            load.asked_ns = now_ns.max(1);
        }
        is_old
    }

    fn set(&self, seat: u16, entries: Option<u64>, clock: &dyn Clock) {
        let entries = entries.unwrap_or(UNKNOWN_ENTRIES);
        let load = SeatLoad { entries, asked_ns: clock.monotonic_ns().max(1) };
        self.loads.lock()[usize::from(seat)] = load;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use esker_base::clock::ManualClock;

    use super::*;

    #[test]
    fn directories_go_to_emptier_seats() {
        let (clock, mut random) = (ManualClock::new(1), Random::from_seed(1));
        let placement = SeatPlacement::new(0, 8);
        let mut entries = [10_000u64, 0, 0, 0, 0, 0, 0, 0];
        for _ in 0..7_000 {
            let chosen =
                placement.choose(&mut random, &clock, |seat| Some(entries[usize::from(seat)]));
            entries[usize::from(chosen)] += 1;
        }
        assert_eq!(entries[0], 10_000, "it has the most of any two");
        assert!(entries[1..].iter().all(|entries| (990..=1_010).contains(entries)), "{entries:?}");
    }

    #[test]
    fn a_seat_that_does_not_answer_is_asked_again_after_a_while() {
        let (clock, mut random) = (ManualClock::new(1), Random::from_seed(2));
        let placement = SeatPlacement::new(0, 2);
        let asked = RefCell::new(0);
        let mut choose = |is_there: bool| {
            placement.choose(&mut random, &clock, |seat| {
                *asked.borrow_mut() += u32::from(seat == 1);
                (seat == 0 || is_there).then_some(100 - u64::from(seat) * 100)
            })
        };
        assert!((0..10).all(|_| choose(false) == 0));
        assert_eq!(*asked.borrow(), 1);
        assert!((0..10).all(|_| choose(true) == 0));
        clock.advance(ENTRIES_AGE_MAX + Duration::from_secs(1));
        assert!((0..10).all(|_| choose(true) == 1));
        assert_eq!(*asked.borrow(), 2);
    }
}

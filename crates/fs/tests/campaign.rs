// SPDX-License-Identifier: Apache-2.0
//! Campaign: seeds and duration of random tests, and replaying failures.
//!
//! `ESKER_SEED=n` runs only that seed. A campaign of `make soak` draws seeds for
//! `ESKER_SOAK_SECONDS`.

use std::ops::Range;

use esker_base::clock::{Clock, SystemClock};
use esker_base::random::Random;

/// Default duration of a campaign.
const SOAK_SECONDS: u64 = 60;

/// Prints the seed if the test fails while this is alive.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}: replay with ESKER_SEED={}", self.0, self.0);
        }
    }
}

/// Runs `test` with every seed of `seeds`, or with the one from the environment.
pub fn quick(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    let seeds = match std::env::var("ESKER_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("ESKER_SEED is a number");
            seed..seed + 1
        }
        Err(_) => seeds,
    };
    for seed in seeds {
        let _named = Named(seed);
        test(seed);
    }
}

/// Runs `test` with fresh seeds until the campaign's time is over.
pub fn soak(mut test: impl FnMut(u64)) {
    if std::env::var_os("ESKER_SEED").is_some() {
        return quick(0..1, test);
    }
    let seconds = std::env::var("ESKER_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let clock = SystemClock;
    let end_ns = clock.monotonic_ns() + seconds.unwrap_or(SOAK_SECONDS) * 1_000_000_000;
    let mut random = Random::from_system();
    let mut count = 0;
    while clock.monotonic_ns() < end_ns {
        // Short seeds are easier to copy.
        let seed = random.next_u64() >> 32;
        let _named = Named(seed);
        test(seed);
        count += 1;
    }
    println!("{count} seeds");
}

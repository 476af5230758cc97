// SPDX-License-Identifier: Apache-2.0
//! Records: a router delivers each record once, in order, and within its epoch.

use std::time::Duration;

use esker_base::{Random, Result};

use crate::transport::Transport;
use crate::{Rank, Router, RouterOptions, Routing};

const ROUTINGS: [Routing; 2] = [Routing::Direct, Routing::ThreeHop];

/// Small batches, so that a few records fill many.
fn options(routing: Routing) -> RouterOptions {
    RouterOptions { batch_bytes: 256, ..RouterOptions::new(routing) }
}

fn router<'a>(
    transport: &'a mut dyn Transport,
    options: RouterOptions,
) -> Router<&'a mut (dyn Transport + 'a)> {
    Router::new(transport, options).expect("options that fit")
}

/// Each rank sends numbered records to every rank in each epoch.
pub fn all_pairs(transport: &mut dyn Transport) {
    let size = transport.size();
    let records = if size <= 16 { 40 } else { 3 };
    for routing in ROUTINGS {
        let mut router = router(transport, options(routing));
        for epoch in 0..3_u32 {
            // By origin: the next expected number.
            let mut expected = vec![0_u32; size as usize];
            let mut sink = |from: Rank, record: &[u8]| -> Result<()> {
                let next = &mut expected[from.index()];
                assert_eq!(record, encode(epoch, *next), "{routing:?} from {from}");
                *next += 1;
                Ok(())
            };
            for number in 0..records {
                for to in Rank::all(size) {
                    router.push(to, &encode(epoch, number), &mut sink).expect("no loss");
                }
            }
            router.flush(&mut sink).expect("no loss");
            assert_eq!(expected, vec![records; size as usize], "{routing:?} epoch {epoch}");
        }
        let counters = router.counters();
        assert_eq!(counters.pushed, u64::from(3 * records * size));
        assert_eq!(counters.delivered, counters.pushed);
    }
}

fn encode(epoch: u32, number: u32) -> Vec<u8> {
    [epoch.to_le_bytes(), number.to_le_bytes()].concat()
}

/// Records of one length travel without it; some ranks push none, and an epoch may be empty.
pub fn one_length(transport: &mut dyn Transport) {
    let (me, size) = (transport.rank(), transport.size());
    for routing in ROUTINGS {
        let mut router =
            router(transport, RouterOptions { record_bytes: Some(8), ..options(routing) });
        let mut sum = 0_u64;
        let mut sink = |_: Rank, record: &[u8]| -> Result<()> {
            sum += u64::from_le_bytes(record.try_into().expect("eight bytes"));
            Ok(())
        };
        router.flush(&mut sink).expect("an empty epoch");
        if me.0 % 2 == 0 {
            for number in 0..200_u64 {
                let to = Rank(u32::try_from(number * 7 % u64::from(size)).expect("a rank"));
                router.push(to, &number.to_le_bytes(), &mut sink).expect("no loss");
            }
        }
        router.flush(&mut sink).expect("no loss");
        let senders = u64::from(size.div_ceil(2));
        let mine = (0..200_u64).filter(|number| number * 7 % u64::from(size) == u64::from(me.0));
        assert_eq!(sum, senders * mine.sum::<u64>(), "{routing:?}");
        let error = router.push(me, &[0; 7], &mut |_, _| Ok(())).expect_err("another length");
        assert_eq!(error.kind(), esker_base::Kind::Invalid);
        router.push(me, &[0; 8], &mut |_, _| Ok(())).expect("the router still works");
    }
}

/// Lengths from zero to several batches.
pub fn any_length(transport: &mut dyn Transport) {
    let (me, size) = (transport.rank(), transport.size());
    let records = if size <= 16 { 200 } else { 20 };
    for routing in ROUTINGS {
        let mut router = router(transport, options(routing));
        let mut random = Random::from_seed(u64::from(me.0));
        // Each record encodes its length and its sender.
        let mut count = 0_u64;
        let mut sink = |from: Rank, record: &[u8]| -> Result<()> {
            assert!(record.iter().all(|byte| *byte == (record.len() as u8 ^ from.0 as u8)));
            count += 1;
            Ok(())
        };
        for number in 0..records {
            let length = match random.below(10) {
                0 => random.below(3000),
                1 => 250 + random.below(10),
                _ => random.below(40),
            };
            let record = vec![length as u8 ^ me.0 as u8; usize::try_from(length).expect("small")];
            let to = Rank((me.0 + number) % size);
            router.push(to, &record, &mut sink).expect("no loss");
            if number % 16 == 0 {
                router.poll(Duration::ZERO, &mut sink).expect("no loss");
            }
        }
        router.flush(&mut sink).expect("no loss");
        let expected = (0..size).map(|from| {
            (0..records).filter(|number| (from + number) % size == me.0).count() as u64
        });
        assert_eq!(count, expected.sum::<u64>(), "{routing:?}");
    }
}

/// All ranks push to one, more than every buffer holds, while that rank pushes to all.
pub fn one_target(transport: &mut dyn Transport) {
    let (me, size) = (transport.rank(), transport.size());
    let target = Rank(size - 1);
    let records: u32 = if size <= 16 { 20_000 } else { 1_000 };
    for routing in ROUTINGS {
        let options = RouterOptions { batch_bytes: 4096, ..RouterOptions::new(routing) };
        let mut router = router(transport, options);
        let mut count = 0_u32;
        let mut sink = |_: Rank, record: &[u8]| -> Result<()> {
            assert_eq!(record.len(), 48);
            count += 1;
            Ok(())
        };
        for number in 0..records {
            let to = if me == target { Rank(number % size) } else { target };
            router.push(to, &[1; 48], &mut sink).expect("no loss");
        }
        router.flush(&mut sink).expect("no loss");
        let of_target = (0..records).filter(|number| number % size == me.0).count();
        let of_others = if me == target { (size - 1) * records } else { 0 };
        assert_eq!(count as usize, of_target + of_others as usize, "{routing:?}");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Slices: the mapping from parts of files to the ranks that hold their segments.
//!
//! ```text
//! offset / slice_bytes = slice;   (hash(file) + slice) mod SLOTS = slot;   owners[slot] = rank
//! ```
//! Neighbouring slices of a file are in neighbouring slots, so a file is spread evenly, and strided
//! writes of a rank remain strided at each owner. Slots move between servers; the division into
//! slices never changes. All ranks have the same map, which changes only while no look-ups are in
//! flight (`balance.rs`).
//! Source: MetaKV §II-B (ranges of the key space to servers), as MDHIM's range servers.

use std::ops::Range;

use esker_base::{Error, Kind, Result};
use esker_comm::{NodeMap, Rank};
use esker_extent::SegmentRun;
use xxhash_rust::xxh3::xxh3_64;

/// Number of slots among which all slices are divided, and therefore the most servers. Enough slots
/// that moving one evens out load, few enough that their loads fit one message.
pub const SLOTS: usize = 1024;

/// Default length of a slice, a range of a file whose segments one server holds: long enough that a
/// stride is a run, short enough that a small file has several servers.
pub const SLICE_BYTES: u64 = 16 << 20;

/// Load is uneven when a server has this many halves of the mean.
const UNEVEN_HALVES: u64 = 3;

/// The mapping from slices to ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceMap {
    slice_bytes: u64,
    /// Ranks that are servers, ascending.
    servers: Vec<Rank>,
    /// By slot.
    owners: Vec<Rank>,
}

impl SliceMap {
    /// A map in which the first `per_node` ranks of each node are servers, with equal shares.
    ///
    /// # Errors
    /// `Invalid` for no servers or for slices of zero bytes.
    pub fn new(nodes: &NodeMap, per_node: u32, slice_bytes: u64) -> Result<Self> {
        if per_node == 0 || slice_bytes == 0 {
            let what = "shared files need a server on each node and slices of at least a byte";
            return Err(Error::new(Kind::Invalid, what));
        }
        let servers: Vec<Rank> = nodes.first_of_each(per_node).take(SLOTS).collect();
        let owners = (0..SLOTS).map(|slot| servers[slot % servers.len()]).collect();
        Ok(Self { slice_bytes, servers, owners })
    }

    /// The ranks that are servers, ascending.
    #[must_use]
    pub fn servers(&self) -> &[Rank] {
        &self.servers
    }

    /// The slot of the byte at `offset` of `file`.
    #[must_use]
    pub fn slot(&self, file: u128, offset: u64) -> usize {
        let start = xxh3_64(&file.to_le_bytes());
        (start.wrapping_add(offset / self.slice_bytes) % SLOTS as u64) as usize
    }

    /// The rank that holds the segment of the byte at `offset` of `file`.
    #[must_use]
    pub fn owner(&self, file: u128, offset: u64) -> Rank {
        self.owners[self.slot(file, offset)]
    }

    /// The end of the slice that contains `offset`.
    fn slice_end(&self, offset: u64) -> u64 {
        let next = (offset / self.slice_bytes).saturating_add(1);
        next.saturating_mul(self.slice_bytes)
    }

    /// Splits `range` of `file` into pieces of one owner each, in order; neighbours have different
    /// owners. For a range that ends at the largest offset the iterator is practically endless:
    /// bound it.
    pub fn pieces(
        &self,
        file: u128,
        range: Range<u64>,
    ) -> impl Iterator<Item = (Rank, Range<u64>)> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (owner, start, mut slices) = (self.owner(file, at), at, 0);
            while at < range.end && self.owner(file, at) == owner {
                at = self.slice_end(at).min(range.end);
                slices += 1;
                // Slots repeat, so an owner of all of them also owns the rest.
                if self.servers.len() == 1 || slices == SLOTS {
                    at = range.end;
                }
            }
            Some((owner, start..at))
        })
    }

    /// Splits `run` into runs within slices of one owner each, and calls `pass` for each.
    pub fn split(&self, run: &SegmentRun, pass: &mut impl FnMut(Rank, SegmentRun)) {
        if self.servers.len() == 1 {
            return pass(self.servers[0], *run);
        }
        let (file, length) = (run.first.file, run.first.length);
        let mut index = 0;
        while index < run.count {
            let segment = run.segment(index);
            let end = self.slice_end(segment.offset);
            if segment.end() > end {
                for (owner, part) in self.pieces(file, segment.offset..segment.end()) {
                    pass(owner, SegmentRun::one(segment.part(part.start, part.end)));
                }
                index += 1;
                continue;
            }
            // All segments of the run that end within this slice.
            let more = (end - length - segment.offset) / run.stride;
            let count = more.saturating_add(1).min(run.count - index);
            let part = SegmentRun { first: segment, count, ..*run };
            let part = if count == 1 { SegmentRun::one(segment) } else { part };
            pass(self.owner(file, segment.offset), part);
            index += count;
        }
    }

    /// Returns whether `rank` owns everything from the start of `run` to its end, as it does for
    /// every part that [`SliceMap::split`] passes. Checks each slot at most once, however long the
    /// run is.
    #[must_use]
    pub fn is_all_of(&self, rank: Rank, run: &SegmentRun) -> bool {
        let whole = run.first.offset..run.end();
        self.pieces(run.first.file, whole.clone()).next() == Some((rank, whole))
    }

    /// Returns whether slots should move, given the highest load of a server and the mean.
    pub(crate) fn is_uneven(most: u64, mean: u64) -> bool {
        mean > 0 && most / UNEVEN_HALVES > mean / 2
    }

    /// Moves slots from overloaded servers to the least loaded, given the load of each slot;
    /// returns whether any moved. Ranks that pass the same load get the same map.
    ///
    /// # Panics
    /// Unless `load` has an entry for each slot.
    pub fn balance(&mut self, load: &[u64]) -> bool {
        assert_eq!(load.len(), SLOTS, "a load for each slot");
        let total = load.iter().fold(0_u64, |sum, own| sum.saturating_add(*own));
        let servers = self.servers.len() as u64;
        let place = |rank: Rank| self.servers.binary_search(&rank).expect("owners are servers");
        let mut loads = vec![0_u64; self.servers.len()];
        for (slot, own) in load.iter().enumerate() {
            let of_server = &mut loads[place(self.owners[slot])];
            *of_server = of_server.saturating_add(*own);
        }
        let mean = total / servers;
        if !loads.iter().any(|most| Self::is_uneven(*most, mean)) {
            return false;
        }
        let mut slots: Vec<usize> = (0..SLOTS).filter(|slot| load[*slot] > 0).collect();
        slots.sort_by_key(|slot| (std::cmp::Reverse(load[*slot]), *slot));
        let mut moved = false;
        for slot in slots {
            let from = self.servers.binary_search(&self.owners[slot]).expect("a server");
            let least = (0..loads.len()).min_by_key(|server| (loads[*server], *server));
            let to = least.expect("there is a server");
            // Moves a slot only if that lowers the higher load of the two servers.
            if loads[from] > mean && loads[to].saturating_add(load[slot]) < loads[from] {
                loads[from] -= load[slot];
                loads[to] += load[slot];
                self.owners[slot] = self.servers[to];
                moved = true;
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use esker_extent::{LogPlace, Segment};
    use esker_table::manifest::SetId;

    use super::*;

    fn map(ranks: u32, per_node: u32, slice_bytes: u64) -> SliceMap {
        SliceMap::new(&NodeMap::even(ranks, 4).unwrap(), per_node, slice_bytes).unwrap()
    }

    fn run(offset: u64, length: u64, count: u64, stride: u64) -> SegmentRun {
        let place = Some(LogPlace { set: SetId(1), log: 2, offset: 7 });
        let first = Segment { file: 9, offset, length, place, checksum: None, seq: 0 };
        SegmentRun { first, count, stride, log_stride: length }
    }

    #[test]
    fn servers_are_the_first_of_each_node() {
        let map = map(10, 2, 100);
        let servers: Vec<u32> = map.servers().iter().map(|rank| rank.0).collect();
        assert_eq!(servers, [0, 1, 4, 5, 8, 9]);
    }

    #[test]
    fn what_is_split_is_the_same_bytes_each_at_its_owner() {
        for (slice, run) in [
            (100, run(30, 10, 50, 20)),
            (64, run(3, 200, 9, 333)),
            (1 << 20, run(0, 5, 100, 5)),
            (10, run(9, 1, 30, 1)),
        ] {
            let map = map(8, 2, slice);
            let mut split: Vec<Segment> = Vec::new();
            map.split(&run, &mut |owner, part| {
                assert!(part.is_possible());
                assert!(map.is_all_of(owner, &part));
                for segment in part.segments() {
                    let (file, range) = (segment.file, segment.offset..segment.end());
                    assert!(map.pieces(file, range).all(|(rank, _)| rank == owner));
                    split.push(segment);
                }
            });
            let bytes = |segments: &[Segment]| -> Vec<(u64, u64)> {
                let byte = |s: &Segment, at| (s.offset + at, s.place.unwrap().offset + at);
                segments.iter().flat_map(|s| (0..s.length).map(move |at| byte(s, at))).collect()
            };
            assert_eq!(bytes(&split), bytes(&run.segments().collect::<Vec<_>>()));
        }
    }

    #[test]
    fn whose_a_run_is_costs_no_more_if_it_is_long() {
        let long = [run(0, 1 << 62, 1, 1 << 62), run(3, 1, 1 << 61, 2), run(0, 1, 2, 1 << 62)];
        for run in long {
            assert!(run.is_possible());
            let many = map(8, 2, 100);
            assert!(many.servers().iter().all(|rank| !many.is_all_of(*rank, &run)));
            let one = map(4, 1, 100);
            assert!(one.is_all_of(Rank(0), &run) && !one.is_all_of(Rank(1), &run));
            let mut moved = map(4, 2, 100);
            moved.owners.fill(Rank(1));
            assert!(moved.is_all_of(Rank(1), &run) && !moved.is_all_of(Rank(0), &run));
        }
    }

    #[test]
    fn uneven_load_moves_and_even_load_does_not() {
        let mut map = map(4, 4, 100);
        let mut load = vec![1; SLOTS];
        assert!(!map.balance(&load));
        // All of the load is in slots of rank 0.
        load.fill(0);
        (0..SLOTS).filter(|slot| slot % 4 == 0).for_each(|slot| load[slot] = 10);
        assert!(map.balance(&load));
        let mut loads = [0; 4];
        (0..SLOTS).for_each(|slot| loads[map.owners[slot].index()] += load[slot]);
        assert!(loads.iter().all(|own| (600..=680).contains(own)), "{loads:?}");
        assert!(!map.balance(&load), "once even it stays");
        // A single slot cannot be divided.
        load.fill(0);
        load[3] = 1000;
        assert!(!map.balance(&load));
    }
}

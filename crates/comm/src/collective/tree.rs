// SPDX-License-Identifier: Apache-2.0
//! Tree: which members send to which, towards a root and back, with members numbered around a ring.
//!
//! ```text
//! 8 members, root 0      distance to the root and its bits: 1 → 7 = 4 + 2 + 1, by 5 and 7
//!        0
//!      / | \
//!     4  6  7            the parent is as far ahead as the distance's highest bit says
//!       /  / \
//!      2  3   5
//!             |
//!             1
//! ```
//! Child d + 2^k of a member at distance d has k above all bits of d. A root therefore has ⌈log2 n⌉
//! children, every other member fewer, and no path more than ⌈log2 n⌉ hops, for any n and any root.
//! Source: MetaKV §III-C, Equation 3. Deviation: the paper shows powers of two; distances that do
//! not exist on a smaller ring are left out.

/// The topology of the tree to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Every member sends to the root, which answers each.
    Star,
    /// Along the spanning tree of the log-ring.
    LogRing,
}

/// The tree to one root.
#[derive(Clone, Copy, Debug)]
pub struct ReductionTree {
    topology: Topology,
    size: u64,
    root: u64,
}

impl ReductionTree {
    /// Creates the tree to `root` among `size` members.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn new(topology: Topology, size: u32, root: u32) -> Self {
        assert!(root < size, "member {root} of {size}");
        Self { topology, size: size.into(), root: root.into() }
    }

    /// The distance on the ring from `member` ahead to the root.
    #[must_use]
    pub fn distance(&self, member: u32) -> u32 {
        narrow((self.root + self.size - u64::from(member)) % self.size)
    }

    /// The member to which `member` sends; `None` for the root.
    #[must_use]
    pub fn parent(&self, member: u32) -> Option<u32> {
        let distance = self.distance(member);
        let bit = distance.checked_ilog2()?;
        match self.topology {
            Topology::Star => Some(narrow(self.root)),
            Topology::LogRing => Some(narrow((u64::from(member) + (1 << bit)) % self.size)),
        }
    }

    /// The members that send to `member`, those with the largest subtrees first.
    pub fn children(&self, member: u32) -> impl Iterator<Item = u32> + use<> {
        let (size, root, topology) = (self.size, self.root, self.topology);
        let distance = u64::from(self.distance(member));
        let first = 64 - distance.leading_zeros();
        let distances = (0..)
            .map(move |number: u64| match topology {
                Topology::Star => number + 1,
                Topology::LogRing => {
                    distance + 1_u64.checked_shl(first + narrow(number)).unwrap_or(u64::MAX / 2)
                }
            })
            .take_while(move |child| {
                *child < size && (topology == Topology::LogRing || distance == 0)
            });
        distances.map(move |child| narrow((root + size - child) % size))
    }
}

/// Narrows a member's number, which fits 32 bits.
fn narrow(member: u64) -> u32 {
    u32::try_from(member).expect("below the size of the ring")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log2_up(size: u32) -> usize {
        size.next_power_of_two().trailing_zeros() as usize
    }

    #[test]
    fn the_papers_example() {
        let tree = ReductionTree::new(Topology::LogRing, 8, 0);
        assert_eq!(tree.children(0).collect::<Vec<_>>(), [7, 6, 4]);
        assert_eq!(tree.children(7).collect::<Vec<_>>(), [5, 3]);
        let path: Vec<u32> = std::iter::successors(Some(1), |at| tree.parent(*at)).collect();
        assert_eq!(path, [1, 5, 7, 0]);
    }

    /// For every size to 300 and every root: it is a tree, no member receives or sends more than
    /// ⌈log2 n⌉ messages in either direction, and no path is longer.
    #[test]
    fn nobody_handles_more_than_log_n() {
        for size in 1..=300 {
            let most = log2_up(size);
            for root in 0..size {
                let tree = ReductionTree::new(Topology::LogRing, size, root);
                let mut reached = 1;
                for member in 0..size {
                    let children: Vec<u32> = tree.children(member).collect();
                    assert!(children.len() <= most, "{size} {root} {member}");
                    assert!(children.iter().all(|child| tree.parent(*child) == Some(member)));
                    reached += children.len();
                    // A member sends one message towards the root, and one to each child away from
                    // it.
                    assert!(tree.parent(member).is_some() == (member != root));
                    let hops = std::iter::successors(Some(member), |at| tree.parent(*at)).count();
                    assert!(hops - 1 <= most);
                }
                assert_eq!(reached, size as usize);
            }
        }
    }

    #[test]
    fn a_star_has_no_levels() {
        let tree = ReductionTree::new(Topology::Star, 5, 3);
        assert_eq!(tree.children(3).count(), 4);
        assert!((0..5).filter(|member| *member != 3).all(|member| tree.parent(member) == Some(3)));
        assert_eq!(tree.children(1).count(), 0);
    }

    #[test]
    fn the_largest_ring_has_parents() {
        let tree = ReductionTree::new(Topology::LogRing, u32::MAX, 5);
        assert_eq!(tree.children(5).count(), 32);
        assert!(tree.parent(6).is_some());
    }
}

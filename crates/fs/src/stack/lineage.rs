// SPDX-License-Identifier: Apache-2.0
//! Lineage: which layers of a stack build on which, and which of them are branches.
//!
//! A set was written on top of the layers on which it builds, its closure, and of no others. Two
//! layers neither of which is in the other's closure are branches: each may have changed, moved or
//! linked a file of a common base independently of the other. A chain has no branches.
//! Why content and identities depend on it: docs/design/0005-one-file-at-two-names.md.

use esker_table::manifest::SetId;
use hashbrown::HashMap;

/// The closures of a stack's branches.
#[derive(Debug, Default)]
pub(crate) struct StackLineage {
    /// By layer, its closure if it is a branch; empty if no layer is one.
    branches: Vec<Option<LayerSet>>,
}

/// Layers of one stack, by index: a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LayerSet(Box<[u64]>);

impl LayerSet {
    fn empty(layers: usize) -> Self {
        Self(vec![0; layers.div_ceil(64)].into())
    }

    fn insert(&mut self, layer: usize) {
        self.0[layer / 64] |= 1 << (layer % 64);
    }

    fn contains(&self, layer: usize) -> bool {
        self.0[layer / 64] >> (layer % 64) & 1 == 1
    }

    fn unite(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }

    fn intersect(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own &= other);
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

impl StackLineage {
    /// Returns the lineage of `layers`, each a set and its bases, in the order of a stack: every
    /// set before all those on which it builds. Ignores bases that are not among them.
    pub(crate) fn of(layers: &[(SetId, &[SetId])]) -> Self {
        if layers.len() < 2 {
            return Self::default();
        }
        let indices: HashMap<SetId, usize> =
            layers.iter().enumerate().map(|(index, (set, _))| (*set, index)).collect();
        let mut closures = vec![LayerSet::empty(layers.len()); layers.len()];
        for (index, (_, bases)) in layers.iter().enumerate().rev() {
            let mut closure = LayerSet::empty(layers.len());
            closure.insert(index);
            for base in bases.iter().filter_map(|base| indices.get(base)) {
                closure.unite(&closures[*base]);
            }
            closures[index] = closure;
        }
        // The layers on which every layer so far builds.
        let mut common: Option<LayerSet> = None;
        let mut branches = Vec::with_capacity(layers.len());
        for (index, closure) in closures.into_iter().enumerate() {
            let has_all_below = closure.count() == layers.len() - index;
            let is_below_all = common.as_ref().is_none_or(|common| common.contains(index));
            match &mut common {
                Some(common) => common.intersect(&closure),
                None => common = Some(closure.clone()),
            }
            branches.push((!has_all_below || !is_below_all).then_some(closure));
        }
        if branches.iter().all(Option::is_none) {
            branches.clear();
        }
        Self { branches }
    }

    /// True if the stack has branches.
    #[inline]
    pub(crate) fn is_branched(&self) -> bool {
        !self.branches.is_empty()
    }

    /// True if `layer` is a branch.
    #[inline]
    pub(crate) fn is_branch(&self, layer: usize) -> bool {
        self.branches.get(layer).is_some_and(Option::is_some)
    }

    /// Returns the branch `layer` and the layers on which it builds, in the stack's order.
    pub(crate) fn closure(&self, layer: usize) -> impl Iterator<Item = usize> {
        let closure = self.branches.get(layer).and_then(Option::as_ref);
        (layer..self.branches.len()).filter(move |at| closure.is_some_and(|own| own.contains(*at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branches(layers: &[(u128, &[u128])]) -> Vec<(usize, Vec<usize>)> {
        let bases: Vec<Vec<SetId>> = layers
            .iter()
            .map(|(_, bases)| bases.iter().map(|base| SetId(*base)).collect())
            .collect();
        let layers: Vec<(SetId, &[SetId])> =
            layers.iter().zip(&bases).map(|((set, _), bases)| (SetId(*set), &bases[..])).collect();
        let lineage = StackLineage::of(&layers);
        let branch = |at: &usize| lineage.is_branch(*at);
        let found: Vec<_> = (0..layers.len()).filter(branch).collect();
        assert_eq!(lineage.is_branched(), !found.is_empty());
        found.into_iter().map(|at| (at, lineage.closure(at).collect())).collect()
    }

    #[test]
    fn a_chain_has_no_branches() {
        assert_eq!(branches(&[]), []);
        assert_eq!(branches(&[(1, &[])]), []);
        assert_eq!(branches(&[(3, &[2]), (2, &[1]), (1, &[])]), []);
        // A shortcut past the middle changes nothing.
        assert_eq!(branches(&[(3, &[2, 1]), (2, &[1]), (1, &[])]), []);
    }

    #[test]
    fn layers_that_do_not_know_each_other_are_branches() {
        let found = branches(&[(4, &[2, 3]), (2, &[1]), (3, &[1]), (1, &[])]);
        assert_eq!(found, [(1, vec![1, 3]), (2, vec![2, 3])]);
        // A layer below only one branch is a branch itself.
        let found = branches(&[(2, &[1]), (1, &[]), (3, &[])]);
        assert_eq!(found, [(0, vec![0, 1]), (1, vec![1]), (2, vec![2])]);
    }
}

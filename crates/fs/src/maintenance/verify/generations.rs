// SPDX-License-Identifier: Apache-2.0
//! Generations: checks that no directory has the identity of one that was removed, and would
//! inherit its entries.
//!
//! A record says how often its name has been a directory (`inode/mod.rs`). If a layer had a lower
//! count than the layers below it, the next directory of the name would get an identity that was
//! used before. In a stack with branches (`lineage.rs`), a record of a file, or of a directory of a
//! base, may count only the directories of one branch. That is harmless: a new directory's count
//! exceeds those of all layers.

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use hashbrown::{HashMap, HashSet};

use super::identities::StackOfTables;
use super::{Finding, LimitedFindings, Severity};
use crate::inode::{FileKind, INODE, NameKind, column};
use crate::stack::dir_tree::in_parallel;
use crate::stack::layers::dir_of;
use crate::stack::lineage::StackLineage;

/// Names that one worker looks up before it takes more.
const PORTION: usize = 1024;

/// A layer's record of a name.
struct NameGeneration {
    layer: usize,
    is_directory: bool,
    id: u128,
    generation: u64,
}

/// Finds names for which a layer of `stack` counts fewer directories than a layer that it builds
/// on. `names` are all that were a directory in some layer. Cost: a look-up of each in each layer.
pub(super) fn check(
    (object, threads): (&str, usize),
    stack: &StackOfTables,
    names: &[&KeyBuffer],
    limited: &mut LimitedFindings,
) -> Result<()> {
    if stack.layers.len() < 2 {
        return Ok(());
    }
    let closures = closures(stack.sets);
    let is_branched = StackLineage::of(stack.sets).is_branched();
    let found = in_parallel(threads, names.len(), PORTION, |at, out| {
        let key = names[at].key();
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let mut row = RowBuffer::default();
        let mut said: Vec<NameGeneration> = Vec::new();
        for (layer, tables) in stack.layers.iter().enumerate() {
            if tables.get(&wanted, false, &mut row)? {
                let entry = NameKind::of_number(row.ints[column::ENTRY]);
                let is_directory = entry == Some(NameKind::Is(FileKind::Directory));
                let generation = row.ints[column::GENERATION];
                let [high, low] = [column::ID_HIGH, column::ID_LOW].map(|at| row.ints[at]);
                let id = u128::from(high) << 64 | u128::from(low);
                said.push(NameGeneration { layer, is_directory, id, generation });
            }
        }
        for (index, upper) in said.iter().enumerate() {
            let below = said[index + 1..].iter();
            let below = below.filter(|lower| closures[upper.layer].contains(&lower.layer));
            let is_of_base = below.clone().any(|lower| lower.is_directory && lower.id == upper.id);
            if is_branched && (!upper.is_directory || is_of_base) {
                continue;
            }
            // A directory may be a changed version of the one below; anything else comes after it.
            let least = |lower: &NameGeneration| {
                lower.generation + u64::from(lower.is_directory && !upper.is_directory)
            };
            let expected = below.map(least).max().unwrap_or(0);
            if upper.generation < expected {
                out.push((at, upper.layer, expected, upper.generation));
            }
        }
        Ok(())
    })?;
    for (at, layer, expected, got) in found {
        let key = names[at].key();
        let path = stack.tree.path(dir_of(&key), key.string);
        let path = path.as_deref().unwrap_or(key.string);
        let expected = format!(
            "{} to have been a directory {expected} times as of set {}",
            String::from_utf8_lossy(path),
            stack.sets[layer].0
        );
        limited.push(Finding::new(Severity::Error, object, expected, format!("{got} times")));
    }
    Ok(())
}

/// Returns, for each layer, the indices of those that it builds on. Every layer precedes those.
fn closures(sets: &[(SetId, &[SetId])]) -> Vec<HashSet<usize>> {
    let indices: HashMap<SetId, usize> =
        sets.iter().enumerate().map(|(index, (set, _))| (*set, index)).collect();
    let mut closures = vec![HashSet::new(); sets.len()];
    for (index, (_, bases)) in sets.iter().enumerate().rev() {
        let mut closure = HashSet::new();
        for base in bases.iter().filter_map(|base| indices.get(base)) {
            closure.insert(*base);
            closure.extend(closures[*base].iter().copied());
        }
        closures[index] = closure;
    }
    closures
}

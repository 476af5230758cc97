// SPDX-License-Identifier: Apache-2.0
//! Graph: the change sets of a store or of a stack, with their bases and names.

use esker_base::store::{ObjectInfo, concurrent};
use esker_base::{Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName, SETS_FOLDER};
use hashbrown::{HashMap, HashSet};

use crate::repository::Repository;
use crate::retention::dependency;
use crate::retention::marker::{self, MarkerHolder};

/// A change set in the graph.
#[derive(Clone, Debug)]
pub struct GraphNode {
    /// The set.
    pub set: SetId,
    /// Its newest manifest, or the error of reading it.
    pub manifest: Result<Manifest, String>,
    /// Published names that stand for it.
    pub names: Vec<String>,
    /// Holders that keep it.
    pub holders: Vec<MarkerHolder>,
    /// Every set it needs, in order: its bases, and sets whose tables or data it shows.
    pub needs: Vec<SetId>,
    /// Records in its tables, including those shadowed by newer ones.
    pub rows: u64,
    /// Bytes of its tables.
    pub table_bytes: u64,
    /// Bytes of the data logs in its folder.
    pub data_bytes: u64,
    /// Bytes of data logs of other sets to which it refers without otherwise needing these sets, as
    /// a squash does.
    pub referenced_bytes: u64,
    /// Number of sorted runs of its tables.
    pub runs: usize,
}

impl GraphNode {
    /// Sets on which it builds, in order of precedence.
    #[must_use]
    pub fn bases(&self) -> &[SetId] {
        self.manifest.as_ref().map_or(&[], |manifest| &manifest.bases)
    }

    /// State, if its manifest can be read.
    #[must_use]
    pub fn state(&self) -> Option<SetState> {
        self.manifest.as_ref().ok().map(|manifest| manifest.state)
    }
}

impl Repository {
    /// Returns the sets of `roots` and everything they need, each once and before those on which it
    /// builds. Damaged or missing sets are included as such. Cost: some requests per set.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn graph(&self, roots: &[SetId]) -> Result<Vec<GraphNode>> {
        let mut names: HashMap<SetId, Vec<String>> = HashMap::new();
        for named in crate::names::survey(&**self.store())?.names {
            names.entry(named.set).or_default().push(named.name);
        }
        let mut nodes = HashMap::new();
        let mut waiting = roots.to_vec();
        while let Some(set) = waiting.pop() {
            if nodes.contains_key(&set) {
                continue;
            }
            let node = self.node(set, names.remove(&set).unwrap_or_default())?;
            waiting.extend(&node.needs);
            nodes.insert(set, node);
        }
        Ok(in_order(roots, nodes))
    }

    /// Returns the graph of every set in the store, starting with the newest on which nothing
    /// builds.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn graph_of_all(&self) -> Result<Vec<GraphNode>> {
        let mut nodes = self.graph(&self.sets()?)?;
        let created = |node: &GraphNode| node.manifest.as_ref().map_or(0, |m| m.created_ns);
        let needed: HashSet<SetId> = nodes.iter().flat_map(|node| node.needs.clone()).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(created(node)));
        // Needed sets are reached from those that need them, regardless of ties in creation time.
        let roots: Vec<SetId> =
            nodes.iter().map(|node| node.set).filter(|set| !needed.contains(set)).collect();
        Ok(in_order(&roots, nodes.into_iter().map(|node| (node.set, node)).collect()))
    }

    /// Returns every change set that has an object in the store.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn sets(&self) -> Result<Vec<SetId>> {
        let names = self.store().list_names(SETS_FOLDER)?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    pub(crate) fn node(&self, set: SetId, names: Vec<String>) -> Result<GraphNode> {
        let store = &**self.store();
        let load = || match Manifest::load(store, set) {
            Err(error) if is_of_manifest(error.kind()) => Ok(Err(error.to_string())),
            loaded => loaded.map(Ok),
        };
        let list = || {
            let holders = || marker::holders(store, set);
            concurrent::try_join(store, holders, || {
                store.list(&ObjectFolder::Data(set).to_string())
            })
        };
        let (manifest, (holders, logs)) = concurrent::try_join(store, load, list)?;
        let mut node = GraphNode {
            set,
            names,
            holders,
            needs: Vec::new(),
            rows: 0,
            table_bytes: 0,
            data_bytes: 0,
            referenced_bytes: 0,
            runs: 0,
            manifest,
        };
        if let Ok(manifest) = &node.manifest {
            node.needs = dependency::of(set, manifest).iter().map(|needed| needed.set).collect();
            node.needs.dedup();
            for table in &manifest.tables {
                node.rows = node.rows.saturating_add(table.rows);
                node.table_bytes = node.table_bytes.saturating_add(table.bytes);
            }
            let runs = manifest.tables.chunk_by(|a, b| a.schema == b.schema && a.run == b.run);
            node.runs = runs.count();
            node.data_bytes = log_bytes(&logs, &|_| true);
            for logs in &manifest.referenced_logs {
                let listed = store.list(&ObjectFolder::Data(logs.set).to_string())?;
                node.referenced_bytes +=
                    log_bytes(&listed, &|number| logs.numbers.contains(number));
            }
        }
        Ok(node)
    }
}

/// Returns the bytes of those `listed` data logs whose numbers are `wanted`.
fn log_bytes(listed: &[ObjectInfo], wanted: &dyn Fn(u64) -> bool) -> u64 {
    let is_wanted = |name: &str| match name.parse() {
        Ok(ObjectName::Data(_, number)) => wanted(number),
        _ => false,
    };
    listed.iter().filter(|log| is_wanted(&log.name)).map(|log| log.bytes).sum()
}

/// True if an error concerns the manifest being read, not the store.
pub(crate) const fn is_of_manifest(kind: Kind) -> bool {
    matches!(kind, Kind::NotFound | Kind::Corrupt | Kind::TooLarge | Kind::Invalid)
}

/// Orders `nodes` so that each comes before those it needs: depth first, in the order of `roots`.
fn in_order(roots: &[SetId], mut nodes: HashMap<SetId, GraphNode>) -> Vec<GraphNode> {
    // Reversed post-order of a depth-first walk is a topological order.
    let mut done: Vec<GraphNode> = Vec::with_capacity(nodes.len());
    let mut entered = HashSet::new();
    let mut stack: Vec<(SetId, bool)> = roots.iter().map(|root| (*root, false)).collect();
    while let Some((set, is_left)) = stack.pop() {
        if is_left {
            done.extend(nodes.remove(&set));
        } else if entered.insert(set)
            && let Some(node) = nodes.get(&set)
        {
            stack.push((set, true));
            let others = node.needs.iter().filter(|needed| !node.bases().contains(needed));
            stack.extend(node.bases().iter().chain(others).map(|needed| (*needed, false)));
        }
    }
    done.reverse();
    // Damaged manifests may need one another in a cycle, to which no root leads.
    let mut left: Vec<GraphNode> = nodes.into_values().collect();
    left.sort_by_key(|node| node.set);
    done.extend(left);
    done
}

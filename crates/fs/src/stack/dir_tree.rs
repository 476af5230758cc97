// SPDX-License-Identifier: Apache-2.0
//! Directory tree: the directories of a stack of change sets, and the names of files that have
//! several.
//!
//! Most records are not read: blocks that contain only files are skipped, and the layers are
//! searched only for names that are a directory or link in some layer.
//! Cost: a read of all tables, and one look-up per layer for each such name.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_base::Result;
use esker_table::schema::{Key, KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::{TableHandle, TableRuns};
use hashbrown::{HashMap, HashSet};

use crate::inode::{DirId, FileKind, INODE, NameKind, column};
use crate::stack::layers::dir_of;

/// Names that one worker looks up before it takes more.
const PORTION: usize = 1024;

/// A name that stands for a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dentry {
    /// The directory that contains the name.
    pub(crate) parent: DirId,
    /// The name.
    pub(crate) name: Vec<u8>,
    /// The directory for which it stands.
    pub(crate) id: DirId,
}

/// Directories and links of a stack.
#[derive(Debug, Default)]
pub(crate) struct DirTree {
    /// Directories to which a path leads, including the root and the links directory.
    live: HashSet<DirId>,
    /// Number of names in live directories of each file that has several.
    links: HashMap<u128, u32>,
    /// Number of names among the seat roots of each file that has any.
    names_at_seat: HashMap<u128, u32>,
    /// Files with names at other seats than their own.
    seat_files: HashSet<u128>,
    /// The first name under which each live directory was found.
    dentries: HashMap<DirId, Dentry>,
    /// Further names of directories that were already found.
    pub(crate) doubles: Vec<Dentry>,
    /// Directories to which no path leads but one from a seat root, and these.
    below_seat_roots: HashSet<DirId>,
    /// Loops of directories to which no path leads: each directory has the name of the next one,
    /// and the last that of the first.
    pub(crate) loops: Vec<Vec<Dentry>>,
}

/// Meaning of a name over all layers.
enum NamedEntry {
    Directory(Dentry),
    Link(DirId, u128),
    /// A name of a file at another seat of a live namespace.
    SeatFile(DirId, u128),
}

impl DirTree {
    /// Computes the directory tree of `layers`, in order of precedence, with `threads` threads.
    pub(crate) fn of(layers: &[&TableRuns], threads: usize) -> Result<Self> {
        let tables: Vec<&Arc<TableHandle>> =
            layers.iter().flat_map(|tables| &tables.runs).flat_map(|run| &run.tables).collect();
        let mut names =
            in_parallel(threads, tables.len(), 1, |at, out| collect_names(tables[at], out))?;
        names.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        names.dedup();
        let named = in_parallel(threads, names.len(), PORTION, |at, out| {
            out.extend(resolve(layers, &names[at])?);
            Ok(())
        })?;
        drop(names);
        Ok(Self::walk(named))
    }

    fn walk(named: Vec<NamedEntry>) -> Self {
        let mut below: HashMap<DirId, Vec<Dentry>> = HashMap::new();
        let (mut links, mut tree) = (Vec::new(), Self::default());
        for name in named {
            match name {
                NamedEntry::Directory(dentry) => {
                    below.entry(dentry.parent).or_default().push(dentry)
                }
                NamedEntry::Link(DirId::SEAT_ROOTS, file) => {
                    *tree.names_at_seat.entry(file).or_default() += 1;
                }
                NamedEntry::Link(parent, file) => links.push((parent, file)),
                NamedEntry::SeatFile(parent, file) => {
                    links.push((parent, file));
                    tree.seat_files.insert(file);
                }
            }
        }
        // An adopted directory gets a path later, and the mark of one that has its path stays.
        tree.live.extend([DirId::ROOT, DirId::LINKS, DirId::ADOPTED, DirId::SEAT_ROOTS]);
        let seat_roots = below.remove(&DirId::SEAT_ROOTS).unwrap_or_default();
        let mut waiting = VecDeque::from([DirId::ROOT, DirId::ADOPTED]);
        while let Some(dir) = waiting.pop_front() {
            for dentry in below.remove(&dir).unwrap_or_default() {
                if tree.live.insert(dentry.id) {
                    waiting.push_back(dentry.id);
                    tree.dentries.insert(dentry.id, dentry);
                } else {
                    tree.doubles.push(dentry);
                }
            }
        }
        waiting.extend(seat_roots.iter().map(|dentry| dentry.id));
        while let Some(dir) = waiting.pop_front() {
            if !tree.live.contains(&dir) && tree.below_seat_roots.insert(dir) {
                waiting.extend(below.remove(&dir).into_iter().flatten().map(|dentry| dentry.id));
            }
        }
        for (parent, file) in links {
            if tree.live.contains(&parent) {
                *tree.links.entry(file).or_default() += 1;
            }
        }
        tree.loops = find_loops(below);
        tree
    }

    /// True if a path leads to the directory.
    pub(crate) fn is_live(&self, dir: DirId) -> bool {
        self.live.contains(&dir)
    }

    /// True if no path leads to the directory, but one from a seat root does: its name may be in the
    /// set of another seat.
    pub(crate) fn is_below_seat_root(&self, dir: DirId) -> bool {
        self.below_seat_roots.contains(&dir)
    }

    /// Returns how many names in live directories stand for a file by a link.
    pub(crate) fn names_of(&self, file: u128) -> u32 {
        self.links.get(&file).copied().unwrap_or(0)
    }

    /// Returns how many names a file has among the seat roots, each for one at another seat.
    pub(crate) fn names_at_seat(&self, file: u128) -> u32 {
        self.names_at_seat.get(&file).copied().unwrap_or(0)
    }

    /// True if a name stands for the file at another seat than its own, whose set the stack may lack.
    pub(crate) fn is_seat_file(&self, file: u128) -> bool {
        self.seat_files.contains(&file)
    }

    /// Returns the files with several names, and their numbers of names.
    pub(crate) fn linked_files(&self) -> impl Iterator<Item = (u128, u32)> {
        self.links.iter().map(|(file, names)| (*file, *names))
    }

    /// Number of directories to which a path leads, except the root.
    pub(crate) fn directories(&self) -> usize {
        self.dentries.len()
    }

    /// Returns the name of a directory; `None` for the root, and if no path leads to it.
    pub(crate) fn location(&self, dir: DirId) -> Option<&Dentry> {
        self.dentries.get(&dir)
    }

    /// Returns the directories in each directory.
    pub(crate) fn children(&self) -> HashMap<DirId, Vec<DirId>> {
        let mut children: HashMap<DirId, Vec<DirId>> = HashMap::new();
        for dentry in self.dentries.values() {
            children.entry(dentry.parent).or_default().push(dentry.id);
        }
        children
    }

    /// True if `dir` is `ancestor` or below it.
    pub(crate) fn is_within(&self, dir: DirId, ancestor: DirId) -> bool {
        let mut at = dir;
        while at != ancestor {
            let Some(dentry) = self.dentries.get(&at) else { return false };
            at = dentry.parent;
        }
        true
    }

    /// Returns the path of `name` in `dir`, if one leads there.
    pub(crate) fn path(&self, dir: DirId, name: &[u8]) -> Option<Vec<u8>> {
        let mut parts = vec![name];
        let mut at = dir;
        while at != DirId::ROOT {
            let dentry = self.dentries.get(&at)?;
            parts.push(&dentry.name);
            at = dentry.parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        Some(path)
    }
}

/// Returns the loops among directories to which no path leads, given by their names, by directory.
/// Those that are below a removed directory are not in a loop.
fn find_loops(mut below: HashMap<DirId, Vec<Dentry>>) -> Vec<Vec<Dentry>> {
    let named: HashSet<DirId> = below.values().flatten().map(|dentry| dentry.id).collect();
    let removed: Vec<DirId> = below.keys().filter(|dir| !named.contains(*dir)).copied().collect();
    remove_below(&mut below, removed);
    let dentries = below.values().flatten().map(|dentry| (dentry.id, dentry.clone()));
    let dentries: HashMap<DirId, Dentry> = dentries.collect();
    let mut dirs: Vec<DirId> = below.keys().copied().collect();
    dirs.sort_unstable();
    let mut loops = Vec::new();
    for dir in dirs {
        if !below.contains_key(&dir) {
            continue;
        }
        // Whatever is left is in a loop or below one.
        let (mut passed, mut at) = (HashSet::new(), dir);
        while passed.insert(at) {
            at = dentries[&at].parent;
        }
        let mut found = vec![dentries[&at].clone()];
        while found[found.len() - 1].parent != at {
            found.push(dentries[&found[found.len() - 1].parent].clone());
        }
        found.reverse();
        loops.push(found);
        remove_below(&mut below, vec![at]);
    }
    loops
}

/// Removes the names in `dirs` and in everything below them.
fn remove_below(below: &mut HashMap<DirId, Vec<Dentry>>, mut dirs: Vec<DirId>) {
    while let Some(dir) = dirs.pop() {
        dirs.extend(below.remove(&dir).into_iter().flatten().map(|dentry| dentry.id));
    }
}

const DIRECTORY: u64 = NameKind::Is(FileKind::Directory).number();

/// Adds the keys of a table's directories and links to `out`.
fn collect_names(handle: &TableHandle, out: &mut Vec<KeyBuffer>) -> Result<()> {
    visit_all_names(handle, &mut |key, _| out.push((*key).into()))
}

/// Visits the keys of a table's directories and links, each with the identity of the directory or
/// file. A file among the seat roots has its name in a directory.
pub(crate) fn visit_names(handle: &TableHandle, visit: &mut dyn FnMut(&Key, u128)) -> Result<()> {
    visit_all_names(handle, &mut |key, id| {
        if dir_of(key) != DirId::SEAT_ROOTS {
            visit(key, id);
        }
    })
}

/// Visits the keys of a table's directories, each with the directory's identity.
pub(crate) fn visit_dirs(handle: &TableHandle, visit: &mut dyn FnMut(&Key, u128)) -> Result<()> {
    visit_names_of(handle, &|entry| entry == DIRECTORY, visit)
}

fn visit_all_names(handle: &TableHandle, visit: &mut dyn FnMut(&Key, u128)) -> Result<()> {
    const LINK: u64 = NameKind::Link.number();
    visit_names_of(handle, &|entry| [DIRECTORY, LINK].contains(&entry), visit)
}

fn visit_names_of(
    handle: &TableHandle,
    is_name: &dyn Fn(u64) -> bool,
    visit: &mut dyn FnMut(&Key, u128),
) -> Result<()> {
    handle.visit_where(column::ENTRY, is_name, &mut |key, row| {
        // The root's own record has the empty name.
        if !key.string.is_empty() {
            let high = u128::from(row.ints[column::ID_HIGH]) << 64;
            visit(key, high | u128::from(row.ints[column::ID_LOW]));
        }
    })
}

/// Visits the keys under which a table has something else, or nothing, where a directory was.
pub(crate) fn visit_removed_dirs(handle: &TableHandle, visit: &mut dyn FnMut(&Key)) -> Result<()> {
    // Every directory at a name raises the generation of the next record.
    let had_directory = |generation| generation > 0;
    handle.visit_where(column::GENERATION, &had_directory, &mut |key, _| visit(key))
}

/// Returns the entry that `layers` show under `key`, if it is a directory or a link.
fn resolve(layers: &[&TableRuns], key: &KeyBuffer) -> Result<Option<NamedEntry>> {
    let key = key.key();
    let wanted = LookupKey { digest: INODE.digest(&key), key };
    let mut row = RowBuffer::default();
    for tables in layers {
        if !tables.get(&wanted, false, &mut row)? {
            continue;
        }
        let parent = DirId(u128::from(key.ints[0]) << 64 | u128::from(key.ints[1]));
        let id = u128::from(row.ints[column::ID_HIGH]) << 64 | u128::from(row.ints[column::ID_LOW]);
        return Ok(match NameKind::of_number(row.ints[column::ENTRY]) {
            Some(NameKind::Is(FileKind::Directory)) => {
                let (name, id) = (key.string.to_vec(), DirId(id));
                Some(NamedEntry::Directory(Dentry { parent, name, id }))
            }
            Some(NameKind::Link) if row.ints[column::RDEV] != 0 => {
                Some(NamedEntry::SeatFile(parent, id))
            }
            Some(NameKind::Link) => Some(NamedEntry::Link(parent, id)),
            _ => None,
        });
    }
    Ok(None)
}

/// Runs `work` on every index below `count` with `threads` threads, `portion` indices at a time,
/// and returns their combined output, in arbitrary order.
///
/// # Errors
/// The first error of `work`; the rest is then not done.
pub(crate) fn in_parallel<T: Send>(
    threads: usize,
    count: usize,
    portion: usize,
    work: impl Fn(usize, &mut Vec<T>) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut out = Vec::new();
        loop {
            let start = next.fetch_add(portion, Ordering::Relaxed);
            if start >= count {
                return Ok(out);
            }
            for at in start..count.min(start + portion) {
                if let Err(error) = work(at, &mut out) {
                    next.store(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let threads = threads.clamp(1, count.div_ceil(portion).max(1));
    if threads == 1 {
        return run();
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let mut all = Vec::new();
        for worker in workers {
            let outcome: Result<Vec<T>> =
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.extend(outcome?);
        }
        Ok(all)
    })
}

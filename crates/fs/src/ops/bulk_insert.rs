// SPDX-License-Identifier: Apache-2.0
//! Bulk insertion: makes a directory that another session has filled part of this one, by
//! reference to its tables, at a cost that does not depend on their size.
//!
//! ```text
//! other set    /content/…, with identities of its own ([`SessionOptions::own_identities`])
//!    │ adopt_set: its tables become the oldest runs of this set; nothing shows them
//!    ▼
//! this set     [`DirId::ADOPTED`]/<identity> → the directory
//!    │ insert_adopted: one operation moves that entry to a name
//!    ▼
//! this set     /results/run-7/…
//! ```
//! A reader therefore sees either no part of the directory or all of it. The entry also tells a
//! repeated call what was done: a directory stands there until it has a name, a mark from then on,
//! so that no directory gets two names. Unlike IndexFS, whose server lends an existing directory for
//! a time, there is no lease: the directory has no name while it is filled, so nobody else can reach
//! it, and a client that dies leaves nothing behind but garbage.
//! Invariant: no layer of the session has records of the sets whose tables it adopts, so that these
//! hide nothing.
//! Source: IndexFS, thesis §2.2 (bulk insertion protocol).
//!
//! [`SessionOptions::own_identities`]: crate::session::SessionOptions::own_identities

use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState, TableRef};
use esker_table::schema::{KEY_INTS_MAX, Key, KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::TableRuns;
use hashbrown::HashSet;

use crate::inode::{DirId, FileId, FileKind, INODE, Inode, NameKind, identity_root, key};
use crate::retention::condemn;
use crate::retention::dependency;
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::session::{NameState, Session, exists, put};
use crate::stack::dir::Dir;
use crate::stack::path::{check_name, show};

impl Session {
    /// Makes the directory `name` in the root of `other`, a complete set whose directories have
    /// identities of their own, part of this session, without a name;
    /// [`Session::insert_adopted`], which takes the identity that this returns, gives it one.
    /// Succeeds if that was done before. Once this returns, the session needs `other`, whose tables
    /// survive with it; the entry without a name survives as the session's durability promises.
    /// Cost: a commit, a marker and two requests for each set that `other` shows, and the read of
    /// one record.
    ///
    /// # Errors
    /// `Invalid` if `other` is not complete, builds on other sets, was squashed, or has not its own
    /// identities; `Exists` if its directory has been inserted before; `Conflict` if another one of
    /// it, or of its job, has been adopted, or if this namespace shows a set that it shows;
    /// `NotFound`; `NotADirectory`; errors of the store. Nothing of a set that is refused is held.
    pub fn adopt_set(&self, other: SetId, name: &[u8]) -> Result<DirId> {
        self.adopt_claimed_set(other, name, |_| Ok(()))
    }

    /// Like [`Session::adopt_set`], if `claim` succeeds for the identity that this returns. It is called
    /// for a set that can be adopted, before it is.
    ///
    /// # Errors
    /// As [`Session::adopt_set`]; those of `claim`.
    pub fn adopt_claimed_set(
        &self,
        other: SetId,
        name: &[u8],
        claim: impl FnOnce(DirId) -> Result<()>,
    ) -> Result<DirId> {
        // Snapshots list what this session needs, and must not miss a set.
        let _adopting = self.adopting();
        let known = self.known_sets();
        let store = self.namespace().layers().source().store.clone();
        let mut markers = ProvisionalMarkers::new(&*store);
        let manifest = self.hold_adoptable(other, &known, &mut markers)?;
        let identity = identity_root(other, &manifest);
        let entry_name = identity.to_string();
        let key = key(DirId::ADOPTED, entry_name.as_bytes());
        let inode = self.check_adoptable((other, &manifest), (name, &key), &known)?;
        if inode.is_some() {
            claim(identity)?;
        }
        // From here on the markers stay, even after an error: the commit may have taken effect.
        markers.keep();
        let Some(inode) = inode else { return Ok(identity) };
        if !self.has_adopted(other) {
            let mut needed = needed_sets(other, &manifest);
            self.tree().adopt(&below_the_root(&manifest.tables), move |own| {
                own.data_sets.append(&mut needed);
                own.data_sets.sort_unstable();
                own.data_sets.dedup();
            })?;
        }
        self.update([key], |_, batch| {
            put(batch, &key, &inode);
            Ok(())
        })?;
        Ok(identity)
    }

    /// Returns the directory `name` of `other`, to be put at `key`; `None` if it is there.
    fn check_adoptable(
        &self,
        (other, manifest): (SetId, &Manifest),
        (name, key): (&[u8], &Key),
        known: &HashSet<SetId>,
    ) -> Result<Option<Inode>> {
        let inode = self.directory_of((other, manifest), name)?;
        let below = self.namespace().layers().below(key, false)?;
        let mut row = RowBuffer::default();
        let is_own = self.tree().get(key, false, &mut row)?;
        let own = is_own.then(|| Inode::of_buffer(&row)).transpose()?;
        let refused = |kind, what: String| Err(Error::new(kind, what));
        match own.as_ref().or(below.inode.as_ref()) {
            Some(entry) if !entry.is_directory() => {
                let what = format!("the directory of @{other} has been inserted here before");
                return refused(Kind::Exists, what);
            }
            Some(entry) if known.contains(&other) && entry.id == inode.id => return Ok(None),
            Some(_) => {
                let what =
                    format!("another directory of @{other}, or of its job, was inserted here");
                return refused(Kind::Conflict, what);
            }
            None if self.has_adopted(other) => return Ok(Some(inode)),
            None => {}
        }
        match needed_sets(other, manifest).iter().find(|needed| known.contains(*needed)) {
            None => Ok(Some(inode)),
            // Its records would hide newer ones, or show a directory at two names.
            Some(shown) => {
                let what = format!(
                    "@{other} cannot be inserted: @{shown}, which it shows, is part of the \
                     namespace already"
                );
                refused(Kind::Conflict, what)
            }
        }
    }

    /// True if the tables of `other` were adopted by this session's own set.
    fn has_adopted(&self, other: SetId) -> bool {
        self.tree().manifest().data_sets.contains(&other)
    }

    /// Returns what [`Session::adopt_set`] would return for each set that this namespace shows, or has
    /// shown, and that can be adopted at all. Cost: two requests for each.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn known_identities(&self) -> Result<HashSet<DirId>> {
        let store = &*self.namespace().layers().source().store;
        let mut identities = HashSet::new();
        for set in self.known_sets() {
            match Manifest::load(store, set) {
                Ok(manifest) if manifest.has_own_identities => {
                    identities.insert(identity_root(set, &manifest));
                }
                // Nobody can insert a set that is gone.
                Err(error) if error.kind() == Kind::NotFound => {}
                loaded => drop(loaded?),
            }
        }
        Ok(identities)
    }

    /// Returns all sets whose records this namespace shows, or has shown.
    fn known_sets(&self) -> HashSet<SetId> {
        let own = (self.set(), self.tree().manifest());
        let mut known: HashSet<SetId> = needed_sets(own.0, &own.1).into_iter().collect();
        for base in self.namespace().layers().bases() {
            known.extend(needed_sets(base.set, &base.manifest));
        }
        known
    }

    /// Gives the directory that [`Session::adopt_set`] adopted, and for which it returned
    /// `identity`, the name `name` in `dir`, as one operation. It keeps its attributes; unless the
    /// session's identity is the superuser, its owner is that user. What survives a crash: as
    /// [`Session::create`]. Cost: no store request unless a layer below may have the name.
    ///
    /// # Errors
    /// As [`Session::create`]; `NotFound` if it was not adopted, or was inserted before.
    pub fn insert_adopted(&self, dir: &Dir, name: &[u8], identity: DirId) -> Result<()> {
        let _structure = self.read_structure();
        check_name(name)?;
        self.check_change(dir, name)?;
        let entry_name = identity.to_string();
        let keys = [key(dir.id(), name), key(DirId::ADOPTED, entry_name.as_bytes())];
        let below = self.below(dir, &keys[0])?;
        let below_entry = self.namespace().layers().below(&keys[1], false)?;
        let now_ns = self.now_ns();
        self.update(keys, |[current, entry], batch| {
            let state = NameState::of(current, &below)?;
            if state.inode.is_some() {
                return Err(exists(name));
            }
            let entry = NameState::of(entry, &below_entry)?.inode;
            let Some(mut inode) = entry.filter(Inode::is_directory) else {
                let what = "the directory was not adopted, or has been inserted before";
                return Err(Error::new(Kind::NotFound, what));
            };
            let owner = self.namespace().identity().is_root().then_some((inode.uid, inode.gid));
            self.own(dir, &mut inode, owner);
            inode.generation = state.next_generation;
            inode.ctime_ns = now_ns;
            // A squash would drop a tombstone.
            let mut mark = Inode::new(NameKind::Is(FileKind::File), 0, now_ns);
            mark.id = FileId::new(self.set(), batch.seq()).0;
            batch.put(&mut [inode.row(&keys[0]), mark.row(&keys[1])]);
            Ok(())
        })?;
        dir.touch(now_ns);
        Ok(())
    }

    /// Holds everything that `other` needs, and returns its manifest if it can be adopted.
    fn hold_adoptable(
        &self,
        other: SetId,
        known: &HashSet<SetId>,
        markers: &mut ProvisionalMarkers<'_>,
    ) -> Result<Manifest> {
        let store = &*self.namespace().layers().source().store;
        let refused = |why: &str| {
            Err(Error::new(Kind::Invalid, format!("@{other} cannot be inserted: {why}")))
        };
        // Before it is held: nothing that was refused stays.
        let manifest = Manifest::load(store, other)?;
        if manifest.state != SetState::Sealed {
            return refused("its session has not completed it");
        }
        if !manifest.has_own_identities || !manifest.bases.is_empty() {
            return refused(
                "its session was not insertable, so its directories may exist here already; import \
                 a copy of them instead",
            );
        }
        if !manifest.referenced_logs.is_empty() {
            return refused("it was squashed");
        }
        for needed in needed_sets(other, &manifest) {
            let holder = MarkerHolder::Set(self.set());
            match known.contains(&needed) {
                // The session has this marker in any case.
                true => marker::hold(store, needed, &holder)?,
                false => markers.hold(needed, holder)?,
            }
            condemn::load_live(store, needed)?;
        }
        Ok(manifest)
    }

    /// Returns the inode of the directory `name` in the root of `other`.
    fn directory_of(&self, (other, manifest): (SetId, &Manifest), name: &[u8]) -> Result<Inode> {
        // The empty name is that of the root's own record.
        check_name(name)?;
        let tables = TableRuns::new(&manifest.tables, &INODE, self.namespace().layers().source());
        let key = key(DirId::ROOT, name);
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let mut row = RowBuffer::default();
        let is_found = tables.get(&wanted, true, &mut row)?;
        let inode = is_found.then(|| Inode::of_buffer(&row)).transpose()?;
        let found = inode.filter(|inode| inode.entry != NameKind::Tombstone);
        let inode = found.ok_or_else(|| {
            let what = format!("/{} of @{other}: no such directory", show(name));
            Error::new(Kind::NotFound, what)
        })?;
        if !inode.is_directory() {
            let what = format!("/{} of @{other}: not a directory", show(name));
            return Err(Error::new(Kind::NotADirectory, what));
        }
        Ok(inode)
    }
}

/// Returns `set` and all sets that it needs, according to `manifest`.
fn needed_sets(set: SetId, manifest: &Manifest) -> Vec<SetId> {
    let mut needed = vec![set];
    needed.extend(dependency::of(set, manifest).into_iter().map(|needed| needed.set));
    needed
}

/// Returns `tables` without the records of the root, which come first in the order of keys.
pub(crate) fn below_the_root(tables: &[TableRef]) -> Vec<TableRef> {
    let mut ints = [0; KEY_INTS_MAX];
    ints[1] = 1;
    let first = KeyBuffer { ints, string: Vec::new() };
    let mut kept = tables.to_vec();
    kept.retain_mut(|table| {
        if table.schema != INODE.id || table.first.key() >= first.key() {
            return true;
        }
        table.first = first.clone();
        table.last.key() >= first.key()
    });
    kept
}

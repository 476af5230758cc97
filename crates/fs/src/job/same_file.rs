// SPDX-License-Identifier: Apache-2.0
//! Files of a base that parts of a job left at several names, or wrote at one name and moved to
//! another. In one set, a shared identity would mix their content and their removals.
//!
//! A file shown at only one name stays as it was. If it is shown at several names, one of them
//! keeps the identity, and each of the others gets its own (`FileId::of_branch`). A file's content
//! is that of the part that wrote the record; segments for it override those of all parts. Files
//! whose ranges are written by several ranks together are not affected: their segments are in parts
//! that have no names, and one part has the record.

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::schema::KeyBuffer;
use hashbrown::{HashMap, HashSet};

use super::conflict::ConflictKind;
use super::cover::{CoverSource, FileCover};
use super::find::{PartFindings, PartVersion};
use super::resolve::{JobLayers, KeyDecisions, PartResolution};
use crate::inode::{DirId, FileId, Inode, NameKind};
use crate::stack::layers::dir_of;

/// A record of a file of a base, in a part that did not make the file.
#[derive(Clone, Debug)]
pub(super) struct InheritedFile {
    pub(super) file: u128,
    pub(super) part: usize,
    pub(super) key: KeyBuffer,
    /// False if the part does not show the directory with the name.
    pub(super) is_seen: bool,
}

/// Changes of the parts to one file of a base.
#[derive(Debug, Default)]
struct FileClaims<'a> {
    /// Parts that have a record of it, and its key.
    records: Vec<(usize, &'a KeyBuffer)>,
    /// Parts that removed it from a name, or replaced it there.
    others: Vec<(usize, &'a KeyBuffer)>,
}

impl FileClaims<'_> {
    fn is_of_several_parts(&self) -> bool {
        let mut parts = self.records.iter().chain(&self.others).map(|(part, _)| part);
        let first = parts.next();
        !self.records.is_empty() && parts.any(|part| Some(part) != first)
    }
}

/// A name at which the joined set shows a file.
struct ShownName<'a> {
    key: &'a KeyBuffer,
    part: usize,
    inode: Inode,
}

impl PartResolution {
    /// Separates files that parts have under one identity. The records are in key order, before and
    /// after.
    pub(super) fn separate_files(
        &mut self,
        found: &PartFindings,
        decided: &KeyDecisions,
        bases: &[Option<Inode>],
        layers: &JobLayers,
    ) -> Result<()> {
        let mut claims: HashMap<u128, FileClaims> = HashMap::new();
        for record in &found.inherited {
            let claims = claims.entry(record.file).or_default();
            let own = (record.part, &record.key);
            // The segments of a record that is not shown may be in the way all the same.
            if record.is_seen { claims.records.push(own) } else { claims.others.push(own) }
        }
        for ((key, versions), base) in found.shared.iter().zip(bases) {
            let Some(base) = base else { continue };
            if matches!(base.entry, NameKind::Is(_)) && !base.is_directory() {
                let has_other = |version: &&PartVersion| version.inode.id != base.id;
                let others = versions.iter().filter(has_other).map(|version| (version.part, key));
                claims.entry(base.id).or_default().others.extend(others);
            }
        }
        let mut claims: Vec<(u128, FileClaims)> = claims.into_iter().collect();
        claims.retain(|(_, claims)| claims.is_of_several_parts());
        claims.sort_unstable_by_key(|(file, _)| *file);
        let mut separated = Vec::new();
        for (file, claims) in &claims {
            let shown = self.shown(*file, claims, decided, layers)?;
            if is_mixed(&shown, claims, decided) {
                separated.extend(self.separate(*file, shown, layers.parts));
            }
        }
        let keys: HashSet<KeyBuffer> = separated.iter().map(|(key, _)| key.clone()).collect();
        self.top.retain(|(key, _)| !keys.contains(key));
        self.top.extend(separated);
        self.top.sort_by(|a, b| a.0.key().cmp(&b.0.key()));
        Ok(())
    }

    /// Returns the names at which the joined set shows `file`: the links directory first, then by
    /// the rule for conflicts.
    fn shown<'a>(
        &self,
        file: u128,
        claims: &FileClaims<'a>,
        decided: &KeyDecisions,
        layers: &JobLayers,
    ) -> Result<Vec<ShownName<'a>>> {
        let mut shown = Vec::new();
        for &(part, key) in &claims.records {
            if decided.get(key).is_some_and(|decided| decided.winner != part) {
                continue;
            }
            let top = self.top.binary_search_by(|(top, _)| top.key().cmp(&key.key()));
            let inode = match top {
                Ok(at) => Some(self.top[at].1.clone()),
                Err(_) => layers.record_of_part(part, key)?,
            };
            if let Some(inode) = inode.filter(|inode| inode.id == file && inode.kind().is_some()) {
                shown.push(ShownName { key, part, inode });
            }
        }
        shown.sort_by_key(|shown| {
            let is_name = dir_of(&shown.key.key()) != DirId::LINKS;
            (is_name, shown.inode.seq, shown.part)
        });
        Ok(shown)
    }

    /// Gives each of `shown` but the first a new identity, and each the content of its part;
    /// returns their records.
    fn separate(
        &mut self,
        file: u128,
        shown: Vec<ShownName>,
        parts: &[SetId],
    ) -> Vec<(KeyBuffer, Inode)> {
        let mut separated = Vec::with_capacity(shown.len());
        for (at, ShownName { key, part, mut inode }) in shown.into_iter().enumerate() {
            if at > 0 {
                inode.id = FileId(file).of_branch(parts[part]).0;
                let kind = ConflictKind::SeveralNames;
                self.conflicts.report(kind, key, (part, &[]), parts);
            }
            if inode.mapped {
                let (shown, size) = (inode.id, inode.size);
                let source = CoverSource::Part { part, stored: file };
                self.covers.push(FileCover { file: shown, size, source });
            }
            separated.push((key.clone(), inode));
        }
        separated
    }
}

/// True if a part other than the one whose record is shown changed the file elsewhere, or changed
/// it there in a way that is not shown.
fn is_mixed(shown: &[ShownName], claims: &FileClaims, decided: &KeyDecisions) -> bool {
    let [only] = shown else { return shown.len() > 1 };
    claims.records.iter().chain(&claims.others).any(|&(part, key)| {
        let is_contested = || decided.get(key).is_some_and(|decided| decided.is_contested);
        part != only.part && (key != only.key || is_contested())
    })
}

// SPDX-License-Identifier: Apache-2.0
//! A composition that shows the newest version of each file on which its bases conflict.
//!
//! The session on top of the bases gets copies of the versions that the stack hides. A file with
//! several names stays one file: its names are decided one by one, and its content and attributes,
//! which all names share, in its record in the links directory. Branches count only the names that
//! they know of, so the session counts the names of such files at the end.

use esker_base::{Error, Kind, Result};
use esker_table::schema::KeyBuffer;
use esker_table::tables::TableRuns;
use hashbrown::{HashMap, HashSet};

use super::{
    BaseConflict, ComposedBases, ConflictingVersion, DirectoryConflict, find_names, path_of_id,
};
use crate::inode::{DirId, FileKind, Inode, NameKind, key};
use crate::ops::FillBuffer;
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::dir_tree::{DirTree, visit_names};
use crate::stack::layers::dir_of;
use crate::stack::namespace::Namespace;
use crate::stack::path::show;

/// Work that is left for the end of [`Session::show_newest_versions`].
#[derive(Default)]
struct LastChanges {
    /// Directories by path, with the attributes that they get. Changes of their entries would
    /// change their times.
    directories: Vec<(Vec<u8>, Inode)>,
    /// Files whose names are counted.
    linked: HashSet<u128>,
}

impl BaseConflict {
    /// Returns the version that was changed last; among several, the one that comes first.
    #[must_use]
    pub fn newest(&self) -> &ConflictingVersion {
        newest_of(self.versions.iter()).expect("a conflict has versions")
    }
}

fn newest_of<'a>(
    versions: impl DoubleEndedIterator<Item = &'a ConflictingVersion>,
) -> Option<&'a ConflictingVersion> {
    versions.rev().max_by_key(|version| version.changed_ns)
}

/// The error for a `path` at which the newest version cannot be shown.
fn no_newest(path: &[u8], why: &str) -> Error {
    let what = format!(
        "{}: its newest version cannot be shown, since {why}: decide by the order of the bases",
        show(path)
    );
    Error::new(Kind::Conflict, what)
}

/// The error for a directory of which no base has the newest version.
fn no_newest_dir(conflict: &BaseConflict, directory: &DirectoryConflict) -> Error {
    let path = conflict.path.as_deref().unwrap_or(&conflict.name);
    match directory {
        DirectoryConflict::Removed => {
            let what = "one base removed the directory, and another changed something in it";
            no_newest(path, what)
        }
        DirectoryConflict::Moved { .. } => {
            let what = format!(
                "{}: the bases moved directories to different places, of which none is the newest: \
                 begin a session on them, and remove the directory where it is not to be",
                show(path)
            );
            Error::new(Kind::Conflict, what)
        }
    }
}

impl Session {
    /// Makes this session, which was begun on the bases of `composition`, show the newest version
    /// at each conflict: copies the content of files, and gives directories their attributes.
    /// Passes each conflict to `report`, with the base whose version is shown. Cost: as
    /// [`ComposedBases::find_conflicts`]; two reads and a copy of each version that the stack
    /// hides; if bases changed files with several names, a read of all tables and memory for their
    /// directories.
    ///
    /// # Errors
    /// `Conflict` if the session cannot show the newest version: of a directory that one base
    /// removed or replaced or that several moved, and of a file of which one base removed all names
    /// while another changed it through one of them. `Corrupt` if the content of a version is damaged. As
    /// [`Session::unlink`] and [`Session::create_with`]; errors of `report`. The session then shows
    /// the newest version of some files only.
    pub fn show_newest_versions(
        &self,
        composition: &ComposedBases,
        report: &mut dyn FnMut(&BaseConflict, usize) -> Result<()>,
    ) -> Result<()> {
        let (mut last, mut linked) = (LastChanges::default(), HashSet::new());
        let decide = &mut |composition: &ComposedBases, conflict: BaseConflict| {
            let shown = self.show_newest(composition, &conflict, &mut last)?;
            report(&conflict, shown)
        };
        composition.search(decide, &mut linked)?;
        linked.extend(last.linked);
        self.count_names(composition, linked)?;
        for (path, inode) in &last.directories {
            match &path[..] {
                b"/" => self.adopt_attributes(None, inode)?,
                path => {
                    let (dir, name) = self.namespace().locate(path)?;
                    self.adopt_attributes(Some((&dir, name)), inode)?;
                }
            }
        }
        Ok(())
    }

    /// Shows the newest version of `conflict`; returns the base that has it, or the one whose
    /// version the stack shows if no path leads to it.
    fn show_newest(
        &self,
        composition: &ComposedBases,
        conflict: &BaseConflict,
        last: &mut LastChanges,
    ) -> Result<usize> {
        let (shown, newest) = (&conflict.versions[0], conflict.newest());
        if let Some(directory) = &conflict.directory {
            return Err(no_newest_dir(conflict, directory));
        }
        let Some(path) = &conflict.path else {
            check_removed_names(composition, conflict)?;
            return Ok(shown.base);
        };
        if conflict.is_linked {
            return self.show_newest_inode(composition, conflict, path);
        }
        let linked = conflict.versions.iter().filter_map(ConflictingVersion::linked_file);
        last.linked.extend(linked.clone());
        let directory = |version: &ConflictingVersion| {
            version.inode.as_ref().filter(|inode| inode.is_directory()).map(Inode::dir_id)
        };
        let (newest_dir, shown_dir) = (directory(newest), directory(shown));
        if let (Some(inode), Some(_)) = (&newest.inode, newest_dir)
            && newest_dir == shown_dir
        {
            if newest.base != shown.base {
                last.directories.push((path.clone(), inode.clone()));
            }
            return Ok(newest.base);
        }
        // Another base may have given the same file more names; it stays one file.
        let newest_file = newest.inode.as_ref().map(|inode| inode.id);
        let link = linked.into_iter().find(|file| Some(*file) == newest_file);
        if newest.base == shown.base && link == shown.linked_file() {
            return Ok(newest.base);
        }
        if newest_dir != shown_dir {
            return Err(no_newest(path, "in one of the bases it is a directory"));
        }
        let (dir, name) = self.namespace().locate(path)?;
        if link.is_none() || link != shown.linked_file() {
            match self.unlink(&dir, name) {
                Err(error) if error.kind() == Kind::NotFound => {}
                removed => drop(removed?),
            }
            if let Some(file) = link {
                self.put_uncounted_link(file, &dir, name)?;
            }
        }
        let from = &composition.bases[newest.base];
        match &newest.inode {
            Some(inode) if link.is_none() => self.adopt_version(&dir, name, from, inode)?,
            Some(inode) if !newest.is_link => self.replace_linked((&dir, name), from, inode)?,
            _ => {}
        }
        Ok(newest.base)
    }

    /// Like [`Session::show_newest`], for the inode of a file with several names, one of which is
    /// `path`. It is not removed, even if that is the last change.
    fn show_newest_inode(
        &self,
        composition: &ComposedBases,
        conflict: &BaseConflict,
        path: &[u8],
    ) -> Result<usize> {
        let shown = &conflict.versions[0];
        let with_names = conflict.versions.iter().filter(|version| !version.is_removal());
        let Some((newest, inode)) =
            newest_of(with_names).and_then(|newest| Some((newest, newest.inode.as_ref()?)))
        else {
            return Ok(shown.base);
        };
        // At one of its names it may have become a newer version already.
        let is_newer = self.namespace().linked(inode.id, false)?.mtime_ns < inode.mtime_ns;
        if newest.base != shown.base && (is_newer || shown.is_removal()) {
            let (dir, name) = self.namespace().locate(path)?;
            self.replace_linked((&dir, name), &composition.bases[newest.base], inode)?;
        }
        Ok(newest.base)
    }

    /// Puts a copy of `inode`, as `from` shows it, at `name` in `dir`.
    fn adopt_version(&self, dir: &Dir, name: &[u8], from: &Namespace, inode: &Inode) -> Result<()> {
        let is_file = inode.kind() == Some(FileKind::File);
        let mut copy = Inode { generation: 0, nlink: 1, branch: None, ..inode.clone() };
        if !is_file {
            return self.adopt(dir, name, copy, None).map(drop);
        }
        (copy.mapped, copy.extent, copy.content) = (false, None, Vec::new());
        with_content(from, inode, |fill| self.adopt(dir, name, copy, Some(fill)).map(drop))
    }

    /// Gives the file with the identity of `inode`, which has several names, the content and
    /// attributes of `inode`, as `from` shows it. One of its names is `name` in `dir`.
    fn replace_linked(
        &self,
        (dir, name): (&Dir, &[u8]),
        from: &Namespace,
        inode: &Inode,
    ) -> Result<()> {
        self.check_change(dir, name)?;
        let _content = self.pin_data_logs();
        let content = match inode.kind() {
            Some(FileKind::File) => {
                Some(with_content(from, inode, |fill| self.store_content(fill))?)
            }
            _ => None,
        };
        let _structure = self.read_structure();
        let mut before = None;
        let link_name = inode.id.to_be_bytes();
        self.update_record(DirId::LINKS, false, &link_name, &mut |own| {
            before = Some(own.clone());
            if let Some(content) = &content {
                content.put_in(own);
            }
            (own.mode, own.uid, own.gid) = (inode.mode, inode.uid, inode.gid);
            (own.mtime_ns, own.atime_ns) = (inode.mtime_ns, inode.atime_ns);
            own.ctime_ns = inode.ctime_ns;
            own.xattrs.clone_from(&inode.xattrs);
            Ok(())
        })?;
        if before.is_some_and(|before| before.mapped) && content.is_some() {
            self.release_segments(inode.id)?;
        }
        Ok(())
    }

    /// Sets the link count of each of `files` to the number of names that this session shows.
    fn count_names(&self, composition: &ComposedBases, files: HashSet<u128>) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let layers = composition.composed.layers().bases();
        let layers: Vec<&TableRuns> = layers.iter().map(|layer| &layer.tables).collect();
        let mut keys: Vec<KeyBuffer> = Vec::new();
        for table in layers.iter().flat_map(|tables| &tables.runs).flat_map(|run| &run.tables) {
            visit_names(table, &mut |key, id| {
                if files.contains(&id) {
                    keys.push((*key).into());
                }
            })?;
        }
        keys.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        keys.dedup();
        let tree = DirTree::of(&layers, 1)?;
        let mut names: HashMap<u128, u32> = HashMap::new();
        for name in keys.iter().filter(|name| tree.is_live(dir_of(&name.key()))) {
            let shown = self.namespace().record(&name.key(), false, false)?;
            if let Some(link) = shown.filter(|inode| inode.entry == NameKind::Link) {
                *names.entry(link.id).or_default() += 1;
            }
        }
        for file in files {
            let counted = names.get(&file).copied().unwrap_or(0);
            let link_name = file.to_be_bytes();
            let inode = self.namespace().record(&key(DirId::LINKS, &link_name), false, false)?;
            if inode.is_some_and(|inode| inode.nlink != counted) {
                let _structure = self.read_structure();
                self.update_record(DirId::LINKS, false, &link_name, &mut |own| {
                    own.nlink = counted;
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// Calls `store` with a function that reads the content of `inode`, as `from` shows it. Checks the
/// content before, since the copy gets checksums of its own.
fn with_content<T>(
    from: &Namespace,
    inode: &Inode,
    store: impl FnOnce(FillBuffer) -> Result<T>,
) -> Result<T> {
    from.read_stored(inode, &mut |_, _| Ok(()))?;
    let mut offset = 0;
    store(&mut |buffer| {
        let bytes = from.read(inode, offset, buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        offset += bytes.len() as u64;
        Ok(bytes.len())
    })
}

/// Fails if `conflict`, to which no path leads, is that of a file of which one base removed all
/// names before another changed it.
fn check_removed_names(composition: &ComposedBases, conflict: &BaseConflict) -> Result<()> {
    let newest = conflict.newest();
    let is_removed = conflict.versions.iter().any(ConflictingVersion::is_removal);
    let Some(inode) = newest.inode.as_ref().filter(|_| conflict.is_linked && is_removed) else {
        return Ok(());
    };
    let names = find_names(&composition.bases[newest.base], HashSet::from([inode.id]), 1)?;
    match path_of_id(&names, inode.id) {
        Some(path) if !newest.is_removal() => {
            Err(no_newest(&path, "one base removed all names of the file, and another changed it"))
        }
        _ => Ok(()),
    }
}

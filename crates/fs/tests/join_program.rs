// SPDX-License-Identifier: Apache-2.0
//! Joins of parts as programs of a few words: what a base has, what each part does, and what the
//! job then shows.

use std::sync::Arc;

use esker_base::Error;
use esker_base::store::MemoryStore;
use esker_fs::inode::FileKind;
use esker_fs::job::{JobId, JobReport};
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::list::DirCursor;
use esker_fs::stack::namespace::Namespace;
use esker_table::manifest::SetId;

use crate::gc::{options, repository, write};
use crate::verify::assert_sound;

/// Bytes of what `big` makes; `seg` makes less, but also in the extent table.
pub const BIG: usize = 3 << 20;

/// Does what `program` says: calls that are separated by semicolons.
pub fn run(session: &Session, program: &str) {
    for call in program.split(';').map(str::trim).filter(|call| !call.is_empty()) {
        let words: Vec<&str> = call.split(' ').collect();
        match words[..] {
            ["mkdir", path] => {
                let (dir, name) = locate(session, path);
                session.mkdir(&dir, name, 0o755).map(drop)
            }
            ["make", path, text] => write(session, path, text.as_bytes()),
            ["big", path] => make_mapped(session, path, BIG),
            ["seg", path] => make_mapped(session, path, 10_000),
            ["rewrite", path, text] => {
                let ((dir, name), mut rest) = (locate(session, path), text.as_bytes());
                let read = &mut |into: &mut [u8]| {
                    std::io::Read::read(&mut rest, into).map_err(|error| Error::io(error, "read"))
                };
                session.rewrite(&dir, name, read).map(drop)
            }
            ["put", path, at, count, byte] => {
                let bytes = vec![byte.parse().expect("a byte"); count.parse().expect("a count")];
                put(session, path, at.parse().expect("an offset"), &bytes);
                Ok(())
            }
            ["cut", path, size] => {
                let size = Some(size.parse().expect("a size"));
                set(session, path, AttributeChanges { size, ..AttributeChanges::default() });
                Ok(())
            }
            ["chmod", path, mode] => {
                let mode = Some(u32::from_str_radix(mode, 8).expect("a mode"));
                set(session, path, AttributeChanges { mode, ..AttributeChanges::default() });
                Ok(())
            }
            ["mv", from, to] => rename(session, from, to, RenameFlags::Replace),
            ["swap", from, to] => rename(session, from, to, RenameFlags::Exchange),
            ["ln", from, to] => {
                let ((dir, name), (other, new)) = (locate(session, from), locate(session, to));
                session.link(&dir, name, &other, new).map(drop)
            }
            ["rm", path] => {
                let (dir, name) = locate(session, path);
                session.unlink(&dir, name).map(drop)
            }
            ["rmdir", path] => {
                let (dir, name) = locate(session, path);
                session.rmdir(&dir, name).map(drop)
            }
            ["rmr", path] => {
                let (dir, name) = locate(session, path);
                session.remove_tree(&dir, name)
            }
            _ => panic!("{call}"),
        }
        .unwrap_or_else(|error| panic!("{call}: {error}"));
    }
}

fn make_mapped(session: &Session, path: &str, bytes: usize) -> esker_base::Result<()> {
    let (dir, name) = locate(session, path);
    let file = session.create_file(&dir, name, 0o644)?;
    session.close_file(file)?;
    put(session, path, bytes / 2, &vec![7; bytes / 2]);
    put(session, path, 0, &vec![7; bytes / 2]);
    Ok(())
}

fn locate<'a>(session: &Session, path: &'a str) -> (Dir, &'a [u8]) {
    let (dir, name) = path.rsplit_once('/').expect("a path");
    let dir = if dir.is_empty() { "/" } else { dir };
    (
        session.namespace().dir(dir).unwrap_or_else(|error| panic!("{path}: {error}")),
        name.as_bytes(),
    )
}

fn put(session: &Session, path: &str, at: usize, bytes: &[u8]) {
    let (dir, name) = locate(session, path);
    let file = session.open_file(&dir, name).expect("open");
    session.file(&file).write(at as u64, bytes).expect("write");
    session.close_file(file).expect("close");
}

fn set(session: &Session, path: &str, changes: AttributeChanges) {
    let (dir, name) = locate(session, path);
    session.setattr(&dir, name, &changes).expect("setattr");
}

fn rename(session: &Session, from: &str, to: &str, flags: RenameFlags) -> esker_base::Result<()> {
    let ((dir, name), (other, new)) = (locate(session, from), locate(session, to));
    session.rename((&dir, name), (&other, new), flags).map(drop)
}

/// Returns a line for each path: the path, the content and the mode. Content over 64 bytes is given
/// as runs of equal bytes.
pub fn lines(namespace: &Namespace) -> Vec<String> {
    let (mut found, mut waiting) = (Vec::new(), vec![(String::new(), namespace.root().clone())]);
    while let Some((parent, dir)) = waiting.pop() {
        let listed = namespace.read_dir(&dir, &DirCursor::default(), usize::MAX).expect("list");
        for entry in listed {
            let path = format!("{parent}/{}", String::from_utf8_lossy(&entry.name));
            let mut bytes = Vec::new();
            if entry.inode.kind() == Some(FileKind::File) {
                let mut take = |piece: &[u8]| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                };
                namespace.read_all(&entry.inode, &mut take).expect("read");
            }
            let mut content = String::from_utf8_lossy(&bytes).into_owned();
            if bytes.len() > 64 {
                let runs = bytes.chunk_by(|a, b| a == b);
                let runs = runs.map(|run| format!("{}x{}", run.len(), run[0]));
                content = runs.collect::<Vec<_>>().join("+");
            }
            found.push(format!("{path} {content} {:o}", entry.inode.mode & 0o777));
            if entry.inode.is_directory() {
                waiting.push((path.clone(), namespace.dir(&path).expect("dir")));
            }
        }
    }
    found.sort();
    found
}

pub fn open(repository: &Repository, set: SetId) -> Vec<String> {
    lines(&repository.open(&[set], Identity::root()).expect("open"))
}

/// Begins, runs and completes parts on top of `base`.
pub fn parts(repository: &Repository, job: u128, base: SetId, ranks: &[&str]) -> Vec<SetId> {
    let mut parts = Vec::new();
    for (rank, program) in (0..).zip(ranks) {
        let session = repository.begin_part(JobId(job), rank, &[base], options()).expect("begin");
        run(&session, program);
        parts.push(session.complete().expect("complete"));
    }
    parts
}

pub fn base(repository: &Repository, program: &str) -> SetId {
    let session = repository.begin(&[], options()).expect("begin");
    run(&session, program);
    session.publish("base").expect("publish")
}

pub struct Joined {
    pub repository: Repository,
    pub sets: Vec<SetId>,
    pub report: JobReport,
    pub lines: Vec<String>,
    /// The lines of each part.
    pub parts: Vec<Vec<String>>,
}

/// Joins parts that run `ranks` on top of what `program` makes.
pub fn join(program: &str, ranks: &[&str]) -> Joined {
    let repository = repository(&(Arc::new(MemoryStore::new()) as _));
    let base = base(&repository, program);
    let sets = parts(&repository, 1, base, ranks);
    let report = repository.publish_job(&sets, "job").expect("publish");
    assert_sound(&repository);
    let mut names: Vec<_> = report.conflicts.iter().map(|own| (own.dir, &own.name)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), report.conflicts.len(), "one conflict a name: {report:#?}");
    let parts = sets.iter().map(|part| open(&repository, *part)).collect();
    let lines = open(&repository, report.set);
    Joined { repository, sets, report, lines, parts }
}

/// A base, what its parts do, and how the lines begin that the job shows, and shows not.
pub type Case =
    (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

pub fn check(cases: &[Case]) {
    for (program, ranks, shown, hidden) in cases {
        let Joined { lines, report, .. } = join(program, ranks);
        let has = |start: &&&str| lines.iter().any(|line| line.starts_with(**start));
        let what = format!("{program} | {}: {lines:#?} {:#?}", ranks.join(" | "), report.conflicts);
        assert_eq!(shown.iter().find(|start| !has(start)), None, "{what}");
        assert_eq!(hidden.iter().find(|start| has(start)), None, "{what}");
    }
}

/// Joins parts and returns the conflicts: path, kind, winner and losers, as ranks.
pub fn conflicts(program: &str, ranks: &[&str]) -> Vec<String> {
    let Joined { report, sets, .. } = join(program, ranks);
    let rank = |set: &SetId| sets.iter().position(|part| part == set).expect("a part");
    let lines = report.conflicts.iter().map(|own| {
        let path = own.path.as_ref().map_or("a file".into(), |path| String::from_utf8_lossy(path));
        let losers: Vec<usize> = own.losers.iter().map(rank).collect();
        format!("{path} {:?} {} {losers:?}", own.kind, rank(&own.winner))
    });
    lines.collect()
}

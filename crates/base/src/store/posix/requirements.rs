// SPDX-License-Identifier: Apache-2.0
//! Requirements: what a store needs from its file system, tested when a store is created.
//!
//! A file system that lacks one of these would fail later, in the middle of a job, or lose data
//! that it had acknowledged. docs/guide/stores.md lists file systems that meet all of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::store::name::UNFINISHED;
use crate::{Error, Kind, Random, Result};

const BYTES: &[u8] = b"esker";

type Requirement = (&'static str, fn(&Path) -> io::Result<()>);

/// The requirements. Each is tested in an empty directory of its own.
const REQUIREMENTS: &[Requirement] = &[
    ("files that keep written data", keeps_bytes),
    ("files that only one process creates", makes_once),
    ("hard links from one directory to another", links),
    ("syncs of directories", syncs_directories),
    ("files that stay readable after their removal", reads_removed),
    ("files with holes", has_holes),
    ("names that differ in case alone", keeps_case),
];

/// Fails unless the file system of the directory `store` has everything that a store needs. Leaves
/// nothing behind. Some thirty requests and five syncs.
///
/// # Errors
/// `Unsupported`, listing everything that is missing; `Denied`, `NoSpace` and the like if no file
/// can be made there at all.
pub(in crate::store) fn check(store: &Path) -> Result<()> {
    let unfinished = store.join(UNFINISHED);
    let attempt = unfinished.join(format!("{:032x}", Random::from_system().u128()));
    let failure = |error| Error::io(error, format!("make a directory in {}", store.display()));
    for made in [&unfinished, &attempt] {
        match fs::create_dir(made) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failure(error)),
            _ => (),
        }
    }
    let missing = missing(&attempt);
    // Best effort: otherwise a collection removes it.
    let _ = fs::remove_dir_all(&attempt);
    // The store makes it anew, with the mode and owner of its directories.
    let _ = fs::remove_dir(&unfinished);
    let missing = missing?;
    if missing.is_empty() {
        return Ok(());
    }
    let what = "the file system lacks features that a store needs";
    let context = format!("{}: {what}: {}", store.display(), missing.join(", "));
    Err(Error::new(Kind::Unsupported, context))
}

/// Returns the requirements that the file system of `directory` does not meet, and why.
fn missing(directory: &Path) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (number, (what, attempt)) in REQUIREMENTS.iter().enumerate() {
        let own = directory.join(number.to_string());
        match fs::create_dir(&own).and_then(|()| attempt(&own)) {
            Ok(()) => (),
            Err(error) if says_nothing_of_the_file_system(&error) => {
                return Err(Error::io(error, format!("try the file system of {}", own.display())));
            }
            Err(error) => {
                missing.push(format!("{what} ({error})"));
                // The others cannot be tested without it.
                if number == 0 {
                    break;
                }
            }
        }
    }
    Ok(missing)
}

fn says_nothing_of_the_file_system(error: &io::Error) -> bool {
    use ErrorKind as E;
    matches!(
        error.kind(),
        E::StorageFull | E::QuotaExceeded | E::ReadOnlyFilesystem | E::StaleNetworkFileHandle
    )
}

fn fails(what: &str) -> io::Result<()> {
    Err(io::Error::other(what))
}

fn make(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(BYTES)?;
    file.sync_data()?;
    Ok(file)
}

fn keeps_bytes(directory: &Path) -> io::Result<()> {
    let file = make(&directory.join("a"))?;
    match fs::read(directory.join("a"))? == BYTES {
        true => file.sync_all(),
        false => fails("another descriptor reads other bytes"),
    }
}

fn makes_once(directory: &Path) -> io::Result<()> {
    make(&directory.join("a"))?;
    match make(&directory.join("a")) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(_) => fails("two processes created the same file"),
    }
}

fn links(directory: &Path) -> io::Result<()> {
    // Some file systems link only within a directory.
    let [first, second, link] = ["a", "b", "other/c"].map(|name| directory.join(name));
    fs::create_dir(directory.join("other"))?;
    make(&first)?;
    make(&second)?;
    fs::hard_link(&first, &link)?;
    if fs::metadata(&first)?.nlink() != 2 {
        return fails("a file with two names does not count them");
    }
    match fs::hard_link(&second, &link) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fails("a link replaces an existing name"),
    }
}

fn syncs_directories(directory: &Path) -> io::Result<()> {
    make(&directory.join("a"))?;
    File::open(directory)?.sync_all()
}

fn reads_removed(directory: &Path) -> io::Result<()> {
    make(&directory.join("a"))?;
    let mut file = File::open(directory.join("a"))?;
    fs::remove_file(directory.join("a"))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes == BYTES { Ok(()) } else { fails("other bytes are read") }
}

fn has_holes(directory: &Path) -> io::Result<()> {
    const HOLE_BYTES: u64 = 1 << 20;
    let mut file = make(&directory.join("a"))?;
    file.seek(io::SeekFrom::Start(HOLE_BYTES))?;
    file.write_all(BYTES)?;
    let bytes = fs::read(directory.join("a"))?;
    let hole = bytes.len().checked_sub(BYTES.len()).and_then(|end| bytes.get(BYTES.len()..end));
    match hole {
        Some(hole) if hole.iter().all(|byte| *byte == 0) => Ok(()),
        _ => fails("holes do not read as zeros"),
    }
}

fn keeps_case(directory: &Path) -> io::Result<()> {
    make(&directory.join("name"))?;
    make(&directory.join("Name")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_file_system_has_all_and_keeps_nothing() {
        let root = tempfile::tempdir().expect("temporary directory");
        check(root.path()).expect("all that is needed");
        let left = fs::read_dir(root.path()).expect("list").count();
        assert_eq!(left, 0);
        // Leftovers of another process of the same kind do not matter.
        check(root.path()).expect("again");
    }

    #[test]
    fn what_is_missing_is_said() {
        let root = tempfile::tempdir().expect("temporary directory");
        // Put a file where the directory of an attempt would be.
        for number in 1..REQUIREMENTS.len() {
            fs::write(root.path().join(number.to_string()), b"").expect("write");
        }
        let found = missing(root.path()).expect("an answer");
        assert_eq!(found.len(), REQUIREMENTS.len() - 1);
        assert!(found[1].starts_with("hard links from one directory to another (File exists"));
        // Without files that keep what is written, nothing else can be tested.
        let root = tempfile::tempdir().expect("temporary directory");
        fs::write(root.path().join("0"), b"").expect("write");
        assert_eq!(missing(root.path()).expect("an answer").len(), 1);
    }
}

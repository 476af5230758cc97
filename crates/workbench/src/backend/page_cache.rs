// SPDX-License-Identifier: Apache-2.0
//! Page cache: takes the data of a target out of the kernel's page cache, so that it is read from the
//! device.

use std::fs::File;
use std::path::Path;

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};
use rustix::fs::{Advice, fadvise};

/// Takes the files in and below `directory` out of the page cache, once they are on the device.
///
/// # Errors
/// As the file system answers.
pub fn drop_directory(directory: &Path) -> Result<()> {
    let failed = |path: &Path, error| Error::io(error, path.display().to_string());
    for entry in std::fs::read_dir(directory).map_err(|error| failed(directory, error))? {
        let entry = entry.map_err(|error| failed(directory, error))?;
        let (path, kind) = (entry.path(), entry.file_type());
        let dropped = match kind.map_err(|error| failed(&path, error))? {
            kind if kind.is_dir() => drop_directory(&path),
            kind if kind.is_file() => File::open(&path)
                .and_then(|file| drop_file(&file))
                .map_err(|error| failed(&path, error)),
            _ => Ok(()),
        };
        match dropped {
            // A database that is open there removes files meanwhile.
            Err(error) if error.kind() == Kind::NotFound => {}
            dropped => dropped?,
        }
    }
    Ok(())
}

/// Takes the objects whose names begin with `prefix` out of the page cache, if the store has them as
/// files of this machine.
///
/// # Errors
/// As the store answers.
pub fn drop_objects(store: &dyn Store, prefix: &str) -> Result<()> {
    let Some(files) = store.local_files() else { return Ok(()) };
    for object in store.list(prefix)? {
        match files.open(&object.name) {
            Err(error) if error.kind() == Kind::NotFound => {}
            opened => drop_file(&opened?).map_err(|error| Error::io(error, object.name))?,
        }
    }
    Ok(())
}

fn drop_file(file: &File) -> std::io::Result<()> {
    // Pages that are not on the device yet stay.
    file.sync_all()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Write};

    use esker_base::store::PosixStore;
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;

    /// True if the start of the file is in the page cache; `None` if its file system does not say.
    fn is_cached(file: &File) -> Option<bool> {
        let mut byte = [0];
        match preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
            Ok(_) => Some(true),
            Err(Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    #[test]
    fn files_and_objects_leave_the_page_cache() {
        let dir = tempfile::tempdir().expect("a directory");
        let below = dir.path().join("below");
        std::fs::create_dir(&below).expect("mkdir");
        let mut file = File::create_new(below.join("file")).expect("a file");
        file.write_all(&[1; 8192]).expect("write");
        let file = File::open(below.join("file")).expect("open");
        let store = PosixStore::new(dir.path()).expect("a store");
        for name in ["set/kept/object", "set/dropped/object"] {
            store.put_if_absent(name, &[2; 8192]).expect("put");
        }
        let files = store.local_files().expect("a store of files");
        let kept = files.open("set/kept/object").expect("open");
        let dropped = files.open("set/dropped/object").expect("open");
        let drops_pages = is_cached(&file) == Some(true) && {
            file.sync_all().expect("sync");
            fadvise(&file, 0, None, Advice::DontNeed).expect("advise");
            is_cached(&file) == Some(false)
        };
        if !drops_pages {
            println!("skipped: files of {} stay in the page cache", dir.path().display());
            return;
        }
        std::fs::read(below.join("file")).expect("read");
        assert_eq!(is_cached(&file), Some(true));
        drop_directory(&below).expect("drop");
        drop_objects(&store, "set/dropped/").expect("drop");
        assert_eq!([&file, &kept, &dropped].map(is_cached), [Some(false), Some(true), Some(false)]);
    }
}

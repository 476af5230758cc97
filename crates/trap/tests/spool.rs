// SPDX-License-Identifier: Apache-2.0
//! The content of files in the spool, and the time at which it is copied there.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::shown::{can_show, content, of, session, shell, show, spool_beside};

fn truncate(path: &Path, size: i64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no zero");
    // SAFETY: `path` ends with a zero byte.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Symptom: a file over 1 MiB was empty after an open with `O_TRUNC` had failed. Cause: such an
/// open does not copy the content to the spool, and the empty file there was written back. Fix: the
/// file counts as one without content until the caller has a descriptor.
#[test]
fn a_large_file_keeps_its_content_if_an_open_that_truncates_fails() {
    if !can_show() || !Path::new("/usr/bin/python3").exists() {
        return;
    }
    let session = session();
    let script = "import os, resource, time\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n\
        held = []\n\
        try:\n    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n\
        except OSError: pass\n\
        try: os.open('large', os.O_WRONLY | os.O_TRUNC)\n\
        except OSError as error: print(error.errno)\n\
        time.sleep(0.2)\n\
        print(os.stat('large').st_size, os.stat('large').st_blocks > 0)\n";
    show(of(&session), |place| {
        fs::write(place.join("large"), vec![7; 3_000_000]).expect("write");
        fs::write(place.join("p.py"), script).expect("write");
    });
    show(of(&session), |place| {
        assert_eq!(shell(place, "python3 p.py"), "24\n3000000 True\n");
        assert_eq!(content(&session, "/large"), vec![7; 3_000_000]);
        assert_eq!(fs::read(place.join("large")).expect("read"), vec![7; 3_000_000]);
    });
    assert_eq!(content(&session, "/large"), vec![7; 3_000_000]);
}

#[test]
fn files_that_nobody_has_open_leave_the_spool_when_they_are_large() {
    const FILES: u64 = 40;
    const BYTES: u64 = 60 << 20;
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        for file in 0..FILES {
            let file = File::create(place.join(file.to_string())).expect("create");
            file.set_len(BYTES).expect("truncate");
        }
    });
    show(of(&session), |place| {
        for file in 0..FILES {
            let file = File::open(place.join(file.to_string())).expect("open");
            assert_eq!(file.read_at(&mut [0; 9], BYTES - 5).expect("read"), 5);
        }
        let left = fs::read_dir(spool_beside(place)).expect("list");
        let left = left.map(|entry| entry.expect("an entry").metadata().expect("stat").len());
        let left = left.sum::<u64>();
        assert!(left < (1 << 30) + 2 * BYTES, "{left} bytes");
    });
}

#[test]
fn no_file_is_extended_beyond_what_a_program_could_open() {
    if !can_show() {
        return;
    }
    let (session, real) = (session(), tempfile::NamedTempFile::new().expect("a file"));
    show(of(&session), |place| fs::write(place.join("file"), "text").expect("write"));
    show(of(&session), |place| {
        let outcome = |path: &Path| truncate(path, 1 << 62).map_err(|error| error.raw_os_error());
        assert_eq!(outcome(&place.join("file")), outcome(real.path()));
    });
}

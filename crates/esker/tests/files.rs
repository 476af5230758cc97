// SPDX-License-Identifier: Apache-2.0
//! Open files: opening, reading and writing at offsets, closing.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use esker::backend::{FaultStore, MemoryStore};
use esker::{Kind, OpenOptions, Repository, Result, Store};

use crate::{repository, session};

#[test]
fn options_open_as_in_the_standard_library() -> Result<()> {
    let session = session();
    session.write("/old", "content")?;
    let new = OpenOptions::new;
    let kind = |options: OpenOptions, path: &str| {
        session.open_with(path, &options).map(drop).map_err(|error| error.kind())
    };
    assert_eq!(kind(new(), "/old"), Err(Kind::Invalid));
    assert_eq!(kind(new().read(true).create(true), "/a"), Err(Kind::Invalid));
    assert_eq!(kind(new().read(true).truncate(true), "/old"), Err(Kind::Invalid));
    assert_eq!(kind(new().write(true), "/absent"), Err(Kind::NotFound));
    assert_eq!(kind(new().write(true).create_new(true), "/old"), Err(Kind::Exists));
    assert_eq!(kind(new().read(true), "/"), Err(Kind::IsADirectory));
    assert_eq!(kind(new().write(true).create(true), "/"), Err(Kind::IsADirectory));
    session.root().symlink("missing", "/dangling")?;
    assert_eq!(kind(new().write(true).create(true), "/dangling"), Err(Kind::NotFound));

    let write_only = session.open_with("/old", &new().write(true))?;
    assert_eq!(write_only.read_bytes_at(0, 1).expect_err("not opened").kind(), Kind::Denied);
    write_only.write_at(b"C", 0)?;
    let read_only = session.open("/old")?;
    assert_eq!(read_only.write_at(b"x", 0).expect_err("not opened").kind(), Kind::Denied);
    // Handles of one file see each other's writes.
    assert_eq!(read_only.read_bytes_at(0, 100)?, "Content");
    session.open_with("/old", &new().write(true).truncate(true).create(true))?;
    assert_eq!(read_only.len()?, 0);
    Ok(())
}

#[test]
fn bytes_are_read_back_from_the_session_and_the_snapshot() -> Result<()> {
    let repository = repository();
    let session = repository.session().begin()?;
    let file = session.create("/large")?;
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    for (number, piece) in bytes.chunks(100_000).enumerate().rev() {
        file.write_at(piece, number as u64 * 100_000)?;
    }
    file.set_len(3_000_100)?;
    file.sync()?;
    assert_eq!(file.append(b"end")?, 3_000_100);
    file.close()?;
    session.publish("a")?;
    let snapshot = repository.snapshot("a")?;
    let file = snapshot.open("/large")?;
    let mut buffer = [1; 1000];
    assert_eq!(file.read_at(&mut buffer, 2_999_500)?, 603);
    assert_eq!(buffer[..500], bytes[2_999_500..]);
    assert_eq!(buffer[500..603], [&[0; 100][..], b"end"].concat());
    assert_eq!(snapshot.read("/large")?[..3_000_000], bytes);
    assert_eq!(file.metadata()?.len(), 3_000_103);
    Ok(())
}

#[test]
fn a_stream_reads_writes_and_seeks() -> std::io::Result<()> {
    let session = session();
    let file = session.create("/f")?;
    let mut stream = file.stream();
    write!(stream, "0123456789")?;
    assert_eq!(stream.seek(SeekFrom::End(-3))?, 7);
    let mut rest = String::new();
    stream.read_to_string(&mut rest)?;
    assert_eq!(rest, "789");
    stream.seek(SeekFrom::Start(4))?;
    stream.write_all(b"four")?;
    assert!(stream.seek(SeekFrom::Current(-100)).is_err());
    assert_eq!(session.open("/f")?.read_bytes_at(0, 100)?, "0123four89");
    // A file is copied through any reader, and an error of Esker keeps its kind.
    session.write_from("/copy", &mut file.stream())?;
    assert_eq!(session.read("/copy")?, b"0123four89");
    let write_only = session.open_with("/f", &OpenOptions::new().write(true))?;
    let denied = session.write_from("/other", &mut write_only.stream()).expect_err("not opened");
    assert_eq!(denied.kind(), Kind::Denied);
    assert!(!session.exists("/other")?);
    Ok(())
}

#[test]
fn appends_of_threads_do_not_overlap() -> Result<()> {
    let session = session();
    let file = session.create("/log")?;
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..100 {
                    file.append(&[b'a' + thread; 10]).expect("append");
                }
            });
        }
    });
    file.close()?;
    let log = session.read("/log")?;
    assert_eq!(log.len(), 4000);
    assert!(log.chunks(10).all(|record| record.iter().all(|byte| *byte == record[0])));
    Ok(())
}

#[test]
fn a_file_outlives_its_names() -> Result<()> {
    let session = session();
    let file = session.create("/f")?;
    file.write_at(&[7; 100_000], 0)?;
    session.remove_file("/f")?;
    assert_eq!(file.read_bytes_at(99_999, 10)?, &[7][..]);
    file.write_at(b"more", 100_000)?;
    assert_eq!(file.metadata()?.links(), 0);
    file.close()
}

#[test]
fn what_a_dropped_file_could_not_store_is_reported_and_kept() -> Result<()> {
    let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::open_in(Store::of_shared(faulty.clone()));
    let session = repository.session().begin()?;
    let file = session.create("/f")?;
    file.write_at(&[7; 50_000], 0)?;
    faulty.fail_one_in(1, Kind::NoSpace);
    drop(file);
    assert_eq!(session.sync().expect_err("there is no room").kind(), Kind::NoSpace);
    faulty.fail_one_in(0, Kind::NoSpace);
    session.publish("a")?;
    assert_eq!(repository.snapshot("a")?.read("/f")?, vec![7; 50_000]);
    Ok(())
}

#[test]
fn a_replaced_file_is_old_or_new_but_never_a_mixture() -> Result<()> {
    let session = session();
    session.write("/f", vec![0; 20_000])?;
    std::thread::scope(|scope| {
        let writer = scope
            .spawn(|| (1..=50_u8).try_for_each(|round| session.write("/f", vec![round; 20_000])));
        while !writer.is_finished() {
            let read = session.read("/f")?;
            assert_eq!(read.len(), 20_000);
            assert!(read.iter().all(|byte| *byte == read[0]));
        }
        writer.join().expect("no panic")
    })
}

// SPDX-License-Identifier: Apache-2.0
//! Mounts whose store has no room for a while.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::esker::Esker;
use crate::mounted::{Mounted, can_mount, run};

/// A file system of a few megabytes in memory, such as for a store.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// The disk that [`SmallDisk::resize`] mounts at `path`.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Mounts it with `options`, such as `size=24m`, or with `remount` changes them.
    pub fn resize(&self, options: &str) {
        run("/".as_ref(), "mount", &["-t", "tmpfs", "-o", options, "tmpfs", self.path()]);
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// True if [`SmallDisk`]s can be mounted; prints a message if not.
pub fn can_mount_small_disks() -> bool {
    let can = can_mount() && rustix::process::geteuid().is_root();
    if !can {
        println!("skipped: a small disk takes the superuser");
    }
    can
}

/// Symptom: on a full store `esker umount` failed with exit code 16 and ended the mount all the same;
/// changes that were only in its memory were lost.
/// Cause: the mount was detached before it tried to write these changes.
/// Fix: it writes them first; without room for them it stays mounted, and says what to do.
#[test]
fn a_mount_whose_changes_find_no_room_stays() {
    if !can_mount_small_disks() {
        return;
    }
    let esker = Esker::without_store();
    fs::create_dir(esker.store()).expect("mkdir");
    let disk = SmallDisk::at(&esker.store());
    disk.resize("size=24m");
    esker.ok(["init"]);
    let ballast = esker.store().join("ballast");
    let mounted = Mounted::of(esker);
    // Without a log, changes stay in memory until they are flushed.
    mounted.mount(&["mount", "--write", "full", "--durability", "none"]);
    fs::write(&ballast, vec![1; 32 << 20]).expect_err("24 MiB hold no 32");
    fs::create_dir(mounted.path("d")).expect("mkdir");
    fs::write(mounted.path("d/small"), "only in memory").expect("write");
    let (pid, at) = (mounted.pid(), mounted.root().to_str().expect("UTF-8").to_owned());
    for _ in 0..2 {
        let said = mounted.esker.fails(16, ["umount", &at]);
        assert!(said.contains("is still mounted") && said.contains("`esker gc`"), "{said}");
        assert!(said.contains(&format!("`esker umount {at}`")), "{said}");
        assert_eq!(mounted.pid(), pid);
        let read = fs::read_to_string(mounted.path("d/small")).expect("it goes on");
        assert_eq!(read, "only in memory");
    }
    fs::remove_file(&ballast).expect("room");
    assert!(mounted.end().starts_with("published full @"));
    assert_eq!(mounted.esker.ok(["cat", "full:/d/small"]), "only in memory");
    mounted.esker.ok(["verify"]);
    drop(mounted);
}

#[test]
fn a_full_disk_is_an_error_of_writes_and_the_mount_goes_on_once_there_is_room() {
    if !can_mount_small_disks() {
        return;
    }
    let esker = Esker::without_store();
    fs::create_dir(esker.store()).expect("mkdir");
    let disk = SmallDisk::at(&esker.store());
    disk.resize("size=24m");
    esker.ok(["init"]);
    let mounted = Mounted::of(esker);
    mounted.write("full", &[]);
    let content = |seed: usize| -> Vec<u8> {
        (0..3 << 20).map(|at| (at * 31 + seed + at / 4_096) as u8).collect()
    };
    let kept = fs::File::create(mounted.path("kept")).expect("create");
    kept.write_all_at(&content(1), 0).expect("write");
    kept.sync_all().expect("sync");
    let large = fs::File::create(mounted.path("large")).expect("create");
    let errors = (0..12).map(|part| large.write_all_at(&content(part), (part << 20) as u64 * 3));
    let error = errors.into_iter().find_map(Result::err).expect("24 MiB take no 36");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(fs::read(mounted.path("kept")).expect("read") == content(1));
    disk.resize("remount,size=200m");
    for part in 0..12 {
        large.write_all_at(&content(part + 5), (part << 20) as u64 * 3).expect("there is room");
    }
    large.sync_all().expect("sync");
    mounted.crash();
    drop((kept, large));
    mounted.resume("full");
    assert!(fs::read(mounted.path("kept")).expect("read") == content(1));
    let large = fs::read(mounted.path("large")).expect("read");
    assert!(large.chunks(3 << 20).enumerate().all(|(part, bytes)| bytes == content(part + 5)));
    mounted.end();
    mounted.esker.ok(["verify"]);
    drop(mounted);
}

/// Returns a name that does not compress and a file's content, which for one file in ten has up to
/// `bytes_max` bytes.
fn entry(random: &mut esker_base::Random, bytes_max: u64) -> (String, Vec<u8>) {
    let name = (0..12).map(|_| format!("{:016x}", random.next_u64())).collect();
    let bytes = if random.below(10) == 0 { random.below(bytes_max + 1) } else { 0 };
    let mut content = vec![0; usize::try_from(bytes).expect("a few")];
    random.fill(&mut content);
    (name, content)
}

/// Programs create files until the disk is full and has no room for the tables, or the log. After
/// something else on the disk is deleted they continue in the same mount.
#[test]
fn a_disk_that_is_full_when_tables_are_written_stops_a_mount_only_until_there_is_room() {
    if !can_mount_small_disks() {
        return;
    }
    // Without a log, and without data, it is tables that find no room.
    for (durability, bytes_max) in [("none", 0), ("async", 4_000)] {
        let esker = Esker::without_store();
        fs::create_dir(esker.store()).expect("mkdir");
        let disk = SmallDisk::at(&esker.store());
        disk.resize("size=64m");
        esker.ok(["init"]);
        let ballast = esker.store().join("ballast");
        let mounted = Mounted::of(esker);
        mounted.mount(&["mount", "--write", "full", "--durability", durability, "--memory", "2M"]);
        fs::write(&ballast, vec![1; 62 << 20]).expect("a ballast");
        let mut random = esker_base::Random::from_seed(1);
        let mut made: Vec<(String, Vec<u8>)> = Vec::new();
        let refused = loop {
            let (name, content) = entry(&mut random, bytes_max);
            match fs::write(mounted.path(&name), &content) {
                Ok(()) => made.push((name, content)),
                Err(error) => break (error, name, content),
            }
            assert!(made.len() < 100_000, "4 MiB hold no 10 MB of names");
        };
        assert_eq!(refused.0.kind(), std::io::ErrorKind::StorageFull, "{}", refused.0);
        assert_eq!(mounted.log().contains("no room for records in memory"), durability == "none");
        for (name, content) in made.iter().rev().take(2_000) {
            assert!(fs::read(mounted.path(name)).expect("it was made") == *content);
        }
        fs::remove_file(&ballast).expect("room");
        made.push((refused.1, refused.2));
        let (name, content) = made.last().expect("pushed just now");
        let has_room = |_: &u32| {
            let again = fs::write(mounted.path(name), content);
            again.inspect_err(|_| std::thread::sleep(Duration::from_millis(100))).is_ok()
        };
        assert!((0..300).find(has_room).is_some(), "{}", mounted.log());
        for _ in 0..5_000 {
            let (name, content) = entry(&mut random, 4_000);
            fs::write(mounted.path(&name), &content).expect("there is room");
            made.push((name, content));
        }
        let (name, content) = made.last_mut().expect("made just now");
        *content = b"synced".to_vec();
        let last = fs::File::create(mounted.path(name)).expect("create");
        last.write_all_at(content, 0).and_then(|()| last.sync_all()).expect("sync");
        drop(last);
        mounted.end();
        mounted.mount(&["mount", "full"]);
        assert_eq!(fs::read_dir(mounted.root()).expect("list").count(), made.len());
        for (name, content) in &made {
            assert!(fs::read(mounted.path(name)).expect("it was made") == *content);
        }
        mounted.esker.ok(["umount".as_ref(), mounted.root().as_os_str()]);
        mounted.esker.ok(["verify"]);
        drop(mounted);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Listing directories.

use std::collections::BTreeSet;
use std::fs;

use rustix::fs::{Dir, Mode, OFlags};

use crate::shown::{can_show, of, session, shell, show};

#[test]
fn large_directories_are_listed_once_also_while_they_change() {
    if !can_show() {
        return;
    }
    const FILES: usize = 5_000;
    show(of(&session()), |place| {
        let wanted: BTreeSet<String> = (0..FILES).map(|file| format!("name-of-{file}")).collect();
        for name in &wanted {
            fs::create_dir(place.join(name)).expect("mkdir");
        }
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(place).expect("list") {
            let entry = entry.expect("an entry");
            assert!(entry.file_type().expect("a type").is_dir());
            assert!(seen.insert(entry.file_name().into_string().expect("UTF-8")), "twice");
            fs::remove_dir(entry.path()).expect("rmdir");
        }
        assert_eq!(seen, wanted);
        assert_eq!(fs::read_dir(place).expect("list").count(), 0);
    });
}

#[test]
fn a_listing_goes_back_and_is_shared_by_processes() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        shell(place, "mkdir d; cd d; seq 300 | xargs touch");
        let opened = rustix::fs::open(place.join("d"), OFlags::DIRECTORY, Mode::empty());
        let opened = opened.expect("open");
        let mut dir = Dir::read_from(&opened).expect("a directory");
        let all = |dir: &mut Dir| -> Vec<String> {
            dir.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                .collect()
        };
        let first = all(&mut dir);
        assert_eq!(first.len(), 302);
        fs::write(place.join("d/new"), "").expect("write");
        dir.rewind();
        let second = all(&mut dir);
        assert_eq!(second.len(), 303);
        assert!(second.contains(&"new".to_owned()) && second.contains(&"..".to_owned()));
        assert_eq!(
            shell(place, "cd d; ls | wc -l; rm -r ../d; ls -A; ls -A .. | wc -l"),
            "301\n0\n"
        );
    });
}

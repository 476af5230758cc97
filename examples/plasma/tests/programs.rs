//! Both programs write the same, and an electron's trace is the same by a full scan and by its key.

use std::path::Path;
use std::process::Command;

const RUN: [&str; 8] = ["--ranks", "3", "--electrons", "3000", "--epochs", "4", "--steps", "10"];

fn output(program: &str, words: &[&str]) -> String {
    let done = Command::new(program).args(words).output().expect("the program starts");
    let message = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}: {message}");
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn traces_agree_whichever_program_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (files, store) = (place("files"), place("store"));
    let plain = env!("CARGO_BIN_EXE_plasma-files");
    let indexed = env!("CARGO_BIN_EXE_plasma-indexed");

    let fastest = output(plain, &[&["run", &files], &RUN[..]].concat());
    assert_eq!(output(indexed, &[&["run", &store], &RUN[..]].concat()), fastest);
    let count = Path::new(&files).read_dir().expect("files").count();
    assert_eq!(count, 3 * 4, "a file for each rank and epoch");

    let ids: Vec<&str> = fastest.trim().trim_start_matches("fastest: ").split(' ').collect();
    assert_eq!(ids.len(), 5);
    for id in ids.into_iter().chain(["0", "2999"]) {
        let scanned = output(plain, &["trace", &files, id]);
        assert_eq!(scanned.lines().count(), 1 + 4, "{scanned}");
        assert_eq!(output(indexed, &["trace", &store, id]), scanned);
    }
    assert_eq!(output(indexed, &["trace", &store, "3000"]), "epoch,x,y,vx,vy,vz\n");
}

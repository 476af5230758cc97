// SPDX-License-Identifier: Apache-2.0
//! Both programs write the same data, with ranks that are threads or processes, and an electron's
//! trace is the same by a full scan and by its key.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use esker_base::store::url;
use esker_imd::DirectoryReader;
use plasma::program::DIRECTORY;

const RUN: [&str; 8] = ["--ranks", "3", "--electrons", "3000", "--epochs", "4", "--steps", "10"];

fn output(program: &str, words: &[&str]) -> String {
    let done = Command::new(program).args(words).output().expect("the program starts");
    let message = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}: {message}");
    String::from_utf8(done.stdout).expect("text")
}

/// Starts `program` as three processes that meet in their own store in `folder`.
fn processes(folder: &Path, program: &str, words: &[&str]) -> Vec<Child> {
    let meet = folder.join("meet");
    let meet = meet.to_str().expect("text");
    url::init(meet).expect("a store to meet in");
    let start = |rank: u32| {
        let told = [("ESKER_RANK", rank.to_string()), ("ESKER_RANKS", "3".to_owned())];
        Command::new(program)
            .args(words)
            .envs(told)
            .envs([("ESKER_JOB", "plasma"), ("ESKER_NODE", "one"), ("ESKER_MEET", meet)])
            .env("ESKER_ADDRESS", "127.0.0.1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    };
    (0..3).map(start).collect()
}

fn ends(processes: Vec<Child>) -> Vec<Output> {
    processes.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect()
}

#[test]
fn ranks_that_are_processes_do_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (threads, files, store) = (place("threads"), place("files"), place("store"));
    let plain = env!("CARGO_BIN_EXE_plasma-files");
    let indexed = env!("CARGO_BIN_EXE_plasma-indexed");
    let fastest = output(plain, &[&["run", &threads], &RUN[..]].concat());
    for (program, target) in [(plain, &files), (indexed, &store)] {
        let meeting = tempfile::tempdir().expect("a folder");
        let words = [&["run", target.as_str()], &RUN[..]].concat();
        let outputs = ends(processes(meeting.path(), program, &words));
        assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
        assert_eq!(String::from_utf8_lossy(&outputs[0].stdout), fastest);
    }
    for id in ["7", "1234"] {
        let trace = output(plain, &["trace", &threads, id]);
        assert_eq!(output(plain, &["trace", &files, id]), trace);
        assert_eq!(output(indexed, &["trace", &store, id]), trace);
    }
}

/// A rank is killed in mid-run: the others name it, every epoch for which `epoch_flush` returned at
/// all ranks is there, record by record, and the reader reports how many epochs are complete.
#[test]
fn a_killed_rank_loses_no_epoch_that_was_flushed() {
    const EPOCHS: u32 = 400;
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (files, store) = (place("files"), place("store"));
    let indexed = env!("CARGO_BIN_EXE_plasma-indexed");
    let epochs = EPOCHS.to_string();
    let run = ["--electrons", "3000", "--epochs", &epochs, "--steps", "2"];
    let mut ranks = processes(folder.path(), indexed, &[&["run", &store], &run[..]].concat());
    let complete = || {
        let store = url::open(&store).ok()?;
        DirectoryReader::open(&store, DIRECTORY, 0).and_then(|reader| reader.epochs_complete()).ok()
    };
    while complete().is_none_or(|epochs| epochs < 3) {
        assert!(ranks[0].try_wait().expect("a process").is_none(), "it ended too early");
        sleep(Duration::from_millis(5));
    }
    let flushed = complete().expect("three or more");
    ranks[1].kill().expect("it runs");
    let outputs = ends(ranks);
    for rank in [0, 2] {
        let said = String::from_utf8_lossy(&outputs[rank].stderr);
        assert_eq!(outputs[rank].status.code(), Some(11), "{said}");
        assert!(said.contains("rank 1"), "{said}");
    }
    let complete = complete().expect("it is readable");
    assert!((flushed..EPOCHS).contains(&complete), "{complete} epochs, {flushed} before");

    // The same run without a loss.
    let plain = env!("CARGO_BIN_EXE_plasma-files");
    let few = complete.to_string();
    let run = ["--ranks", "3", "--electrons", "3000", "--epochs", &few, "--steps", "2"];
    output(plain, &[&["run", &files], &run[..]].concat());
    for id in ["0", "1500", "2999"] {
        let trace = output(plain, &["trace", &files, id]);
        let lost = Command::new(indexed).args(["trace", &store, id]).output().expect("it runs");
        let said = String::from_utf8_lossy(&lost.stderr);
        assert!(said.contains(&format!("first {complete} epochs are complete")), "{said}");
        let found = String::from_utf8_lossy(&lost.stdout);
        assert!(found.starts_with(&trace), "{found}, not {trace}");
    }
    let reader =
        DirectoryReader::open(&url::open(&store).expect("a store"), DIRECTORY, 0).expect("open");
    let keys: Vec<[u8; 8]> = (0..3000_u64).map(u64::to_be_bytes).collect();
    let all = reader.get_many(&keys, 0..complete, 2).expect("all of them").values;
    assert!(all.iter().all(|values| values.len() == complete as usize));
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

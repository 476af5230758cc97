// SPDX-License-Identifier: Apache-2.0
//! Shared files: replayed by threads and by processes, and read as files afterwards.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use esker_base::Random;
use esker_base::store::{PosixStore, SharedStore};
use esker_comm::threads;
use esker_fs::job::JobId;
use esker_fs::repository::Repository;
use esker_shared::{SharedJob, SharedOptions};
use serde_json::Value;

use crate::esker::Esker;
use crate::mounted::{Mounted, can_mount};

fn replay(esker: &Esker, before: &[&str], more: &[&str]) -> Value {
    let words = [before, &["segment", "replay"], more, &["--check-published", "--json"]].concat();
    let said = esker.ok(words);
    let mut lines = said.lines().filter(|line| line.starts_with('{'));
    let report = serde_json::from_str(lines.next().expect("a report")).expect("JSON");
    assert_eq!(lines.next(), None, "one rank reports");
    report
}

#[test]
fn ranks_write_and_read_one_file() {
    let esker = Esker::new();
    let small = ["--transfer", "3K", "--block", "12K", "--segments", "3", "--slice", "16K"];
    let threads = ["--ranks", "5", "--per-node", "2"];
    let variants: [(&str, &[&str]); 5] = [
        ("strided", &[]),
        ("segmented", &["--order", "segmented", "--servers", "2", "--shift", "3"]),
        ("own", &["--file-per-process"]),
        ("messages", &["--reads", "ranks"]),
        ("sealed", &["--laminate", "--durability", "none"]),
    ];
    let bytes = 5 * 3 * 12 * 1024_u64;
    for (name, more) in variants {
        let target = format!("{name}:/out");
        let report =
            replay(&esker, &[], &[&[&target[..]], &small[..], &threads[..], more].concat());
        assert_eq!((&report["transfers"], &report["bytes"]), (&60.into(), &bytes.into()), "{name}");
        assert_eq!(
            report["verified_bytes_of_rank_0"],
            bytes / 5 * 2,
            "{name}: rank 0's own share, twice"
        );
        let first = if name == "own" { "own:/out.00000003" } else { &target };
        let printed = esker.run(["cat", first]).stdout;
        let size = if name == "own" { bytes / 5 } else { bytes };
        assert_eq!(printed.len() as u64, size, "{name}");
    }
    let strided = esker.run(["cat", "strided:/out"]).stdout;
    assert!(strided == esker.run(["cat", "messages:/out"]).stdout);
    let sound = esker.ok(["verify", "--json"]);
    assert!(sound.contains("\"sound\":true"), "{sound}");
}

#[test]
fn processes_replay_a_trace() {
    let esker = Esker::new();
    let trace = "# overlaps and a hole\n0 0 1000\n1 500 1000\n2 9000 1\n0 1400 3000\n2 0 10\n";
    std::fs::write(esker.path("trace"), trace).expect("write");
    let esker_itself = env!("CARGO_BIN_EXE_esker");
    let run = ["run", "-n", "3", "--per-node", "2", "--", esker_itself];
    let more = ["run:/t", "--trace", "trace", "--slice", "700", "--reads", "ranks"];
    let report = replay(&esker, &run, &more);
    assert_eq!((&report["ranks"], &report["transfers"]), (&3.into(), &5.into()));
    let bytes = esker.run(["cat", "run:/t"]).stdout;
    assert_eq!(bytes.len(), 9001);
    assert!(bytes[4400..9000].iter().all(|byte| *byte == 0), "the hole");
    // On top of the first, overwriting it.
    replay(&esker, &[], &["run:/t", "--as", "more", "--ranks", "2", "--block", "64K"]);
    assert_eq!(esker.run(["cat", "more:/t"]).stdout.len(), 2 << 16);
    esker.fails(13, ["segment", "replay", "x:/t", "--transfer", "3K", "--block", "4K"]);
    std::fs::write(esker.path("trace"), "0 0\n").expect("write");
    let said = esker.run(["segment", "replay", "x:/t", "--trace", "trace"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("line 1"));
}

/// Symptom: the help promises that the store is created, but processes reported that there is none.
/// Cause: no process created the store that all of them waited for.
/// Fix: the first does, and the others wait.
#[test]
fn processes_make_the_store_if_there_is_none() {
    let esker = Esker::without_store();
    let esker_itself = env!("CARGO_BIN_EXE_esker");
    let mut command = esker.command(["run", "-n", "3", "--", esker_itself, "--store", "fresh"]);
    command.args(["segment", "replay", "run:/x", "--block", "64K", "--json"]);
    let output = command.env_remove("ESKER_STORE").output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let printed = esker.run(["--store", "fresh", "cat", "run:/x"]).stdout;
    assert_eq!(printed.len(), 3 << 16);
}

const RANKS: u32 = 4;
const FILE_BYTES: u64 = 700_000;

/// A job of several ranks writes a file in strides, overlapping, with holes, and truncates it;
/// publishes it as `run` and returns its content.
fn write_together(esker: &Esker) -> Vec<u8> {
    let store: SharedStore = Arc::new(PosixStore::new(esker.store()).expect("a store"));
    let repository = Repository::new(store);
    let options =
        SharedOptions { servers_per_node: 2, slice_bytes: 10_000, ..SharedOptions::default() };
    let contents = threads::run(RANKS, RANKS, |transport| {
        let mut job = SharedJob::begin(transport, &repository, JobId(5), &[], &options)?;
        let me = job.segments().rank().0;
        let mut file = job.open("/out", Some(0o644))?;
        let mut model: Vec<u8> = Vec::new();
        let mut random = Random::from_seed(3);
        for round in 0..6_u64 {
            // In each round, ranks either interleave or have separate parts.
            let (length, start) = (1 + random.below(3_000), random.below(FILE_BYTES / 3));
            for turn in 0..20 {
                for rank in 0..RANKS {
                    let place = match round % 2 {
                        0 => turn * u64::from(RANKS) + u64::from(rank),
                        _ => u64::from(rank) * 25 + turn,
                    };
                    let offset = start + place * length;
                    let mut bytes = vec![0; length as usize];
                    random.fill(&mut bytes);
                    let end = (offset + length) as usize;
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&bytes);
                    if rank == me {
                        job.write(&mut file, offset, &bytes)?;
                    }
                }
            }
            job.sync(&mut file)?;
            job.barrier()?;
            if round == 3 {
                let size = model.len() as u64 / 2;
                let _ = job.truncate(&mut file, size)?;
                model.truncate(size as usize);
            }
        }
        let _ = job.truncate(&mut file, FILE_BYTES)?;
        model.resize(FILE_BYTES as usize, 0);
        assert_eq!(job.close(file)?.size, FILE_BYTES);
        job.publish("run")?;
        Ok(model)
    });
    let mut contents = contents.expect("a job");
    assert!(contents.iter().all(|content| *content == contents[0]));
    contents.swap_remove(0)
}

fn assert_same(got: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    let different = (0..got.len()).find(|at| got[*at] != wanted[*at]);
    assert_eq!(different, None, "{what}: the first byte that is another");
}

#[test]
fn what_ranks_wrote_together_is_an_ordinary_file() {
    let esker = Esker::new();
    let content = write_together(&esker);
    assert_same(&esker.run(["cat", "run:/out"]).stdout, &content, "cat");
    esker.ok(["export", "run", "exported"]);
    let exported = std::fs::read(esker.path("exported/out")).expect("an export");
    assert_same(&exported, &content, "export");
    if !can_mount() {
        return;
    }
    let mounted = Mounted::of(esker);
    mounted.mount(&["mount", "run"]);
    let path = mounted.path("out");
    assert_eq!(std::fs::metadata(&path).expect("a file").len(), FILE_BYTES);
    assert_same(&std::fs::read(&path).expect("a read"), &content, "the mount");
    let file = std::fs::File::open(&path).expect("a file");
    let mut random = Random::from_seed(4);
    for _ in 0..200 {
        let offset = random.below(FILE_BYTES + 100) as usize;
        let mut bytes = vec![0; random.below(9_000) as usize];
        let count = file.read_at(&mut bytes, offset as u64).expect("a read");
        let end = content.len().min(offset + bytes.len());
        let wanted = &content[offset.min(end)..end];
        assert_same(&bytes[..count], wanted, &format!("the mount at {offset}"));
    }
    drop(file);
    mounted.end();
}

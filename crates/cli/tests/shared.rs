//! Shared files as users replay them, by threads and by processes, and as files afterwards.

use serde_json::Value;

use crate::esker::Esker;

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
    // On top of it, over it.
    replay(&esker, &[], &["run:/t", "--as", "more", "--ranks", "2", "--block", "64K"]);
    assert_eq!(esker.run(["cat", "more:/t"]).stdout.len(), 2 << 16);
    esker.fails(13, ["segment", "replay", "x:/t", "--transfer", "3K", "--block", "4K"]);
    std::fs::write(esker.path("trace"), "0 0\n").expect("write");
    let said = esker.run(["segment", "replay", "x:/t", "--trace", "trace"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("line 1"));
}

/// Symptom: the help says that the store is made, and processes said that there is none. Cause: none
/// of them was to make what the others look for. Fix: the first does, and the others wait.
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

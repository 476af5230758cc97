// SPDX-License-Identifier: Apache-2.0
//! `esker advise` as users run it.

use crate::esker::Esker;

const STRACE: &[u8] = include_bytes!("../../advisor/tests/data/python.strace");
const DARSHAN: &[u8] = include_bytes!("../../advisor/tests/data/darshan/ior_hdf5.darshan");
const COUNTERS: &[u8] = include_bytes!("../../advisor/tests/data/darshan/macsio.darshan");

#[test]
fn logs_are_imported() {
    let esker = Esker::without_store();
    for (name, bytes) in [("a.strace", STRACE), ("b.darshan", DARSHAN), ("c.darshan", COUNTERS)] {
        std::fs::write(esker.path(name), bytes).expect("written");
    }
    let strace = ["advise", "import", "a.strace", "-o", "a.arrow", "--features", "a.json"];
    let said = esker.ok([&strace[..], &["--path", "/tmp/app"]].concat());
    assert!(said.starts_with("a.arrow: ") && said.contains(" of 2 processes, 0 calls"), "{said}");
    let said = esker.ok(["advise", "import", "b.darshan", "-o", "b.arrow", "--features", "b.json"]);
    assert!(said.starts_with("4 processes, 59 records of reads and writes"), "{said}");
    for (name, processes) in [("a", 2), ("b", 4)] {
        let trace = std::fs::read(esker.path(format!("{name}.arrow"))).expect("a trace");
        assert!(trace.starts_with(b"ARROW1") && trace.ends_with(b"ARROW1"));
        let features = std::fs::read(esker.path(format!("{name}.json"))).expect("features");
        let features: serde_json::Value = serde_json::from_slice(&features).expect("JSON");
        assert_eq!(features["processes"], processes);
    }
    let said = esker.fails(["advise", "import", "c.darshan", "-o", "c.arrow"]);
    assert!(said.contains("DXT_ENABLE_IO_TRACE=1"), "{said}");
    assert!(!esker.path("c.arrow").exists());
    esker.ok(["advise", "import", "c.darshan", "--features", "c.json"]);
    let said = esker.fails(["advise", "import", "a.arrow", "-o", "d.arrow"]);
    assert!(said.contains("a.arrow at byte 0: line 1: "), "{said}");
}

#[test]
fn patterns_are_made() {
    let esker = Esker::without_store();
    let hpio = ["advise", "synth", "hpio", "-p", "2", "-n", "3", "-r", "4K", "-g", "512"];
    let found = esker.json([&hpio[..], &["-o", "hpio.arrow"]].concat());
    // Open, barrier, three requests, barrier and close of two ranks.
    assert_eq!(found[0]["records"], 14);
    let said = esker.fails(["advise", "synth", "btio-like", "-p", "3", "-o", "btio.arrow"]);
    assert!(said.contains("square number of ranks"), "{said}");
    assert!(!esker.path("btio.arrow").exists());
}

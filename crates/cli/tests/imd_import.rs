//! Dumps of fixed-width records imported as users do.

use serde_json::Value;

use crate::esker::Esker;

/// The one object that a command printed.
fn one(mut printed: Vec<Value>) -> Value {
    assert_eq!(printed.len(), 1, "{printed:?}");
    printed.remove(0)
}

/// A dump as of a simulation: header with the step, records of a key and five bytes more.
fn dump(esker: &Esker, name: &str, step: u32, keys: std::ops::Range<u16>) -> String {
    let mut bytes = [b"head".as_slice(), &step.to_le_bytes()].concat();
    for key in keys {
        bytes.extend_from_slice(&[&key.to_be_bytes()[..], b"value"].concat());
    }
    let path = esker.path(name);
    std::fs::write(&path, bytes).expect("write a dump");
    path.to_str().expect("text").to_owned()
}

#[test]
fn dumps_become_epochs() {
    let esker = Esker::new();
    let files = [
        dump(&esker, "later.0", 7, 0..50),
        dump(&esker, "later.1", 7, 50..100),
        dump(&esker, "first.0", 3, 0..99),
    ];
    let layout = ["--header-bytes", "8", "--record-bytes", "7", "--key", "0:u16be"];
    let import = |target: &str, more: &[&str]| {
        let words = [&["imd", "import", target][..], &layout, more].concat();
        let words: Vec<String> = words.into_iter().map(Into::into).chain(files.clone()).collect();
        one(esker.json(words.iter().map(String::as_str)))
    };
    let steps = ["--step", "4:u32", "--ranks", "2", "--rank-memory", "4M", "--format", "ordered"];
    let made = import("run:/p", &steps);
    assert_eq!((&made["records"], &made["epochs"]), (&199.into(), &2.into()));
    assert_eq!(made["steps"], serde_json::json!([3, 7]));
    // Key 10 is in both epochs, key 99 in the later one.
    let value = esker.run(["cat", "run:/p/000000000000000a"]).stdout;
    assert_eq!(value, b"\0\nvalue\0\nvalue");
    assert_eq!(esker.run(["cat", "run:/p/0000000000000063"]).stdout, b"\0cvalue");
    let got = one(esker.json(["imd", "get", "run:/p", "0000000000000063"]));
    assert_eq!(got["values"][0]["epoch"], 1);
    assert_eq!(import("flat:/p", &["--rank-memory", "4M"])["epochs"], 1);

    let fails = |code, words: &[&str]| {
        let words = [&["imd", "import", "bad:/p"][..], words, &[files[0].as_str()]].concat();
        esker.fails(code, words);
    };
    fails(13, &["--record-bytes", "7", "--header-bytes", "9", "--key", "0:u8"]);
    fails(13, &["--record-bytes", "7", "--header-bytes", "8", "--key", "6:u16"]);
    fails(2, &["--record-bytes", "7", "--key", "0:u9"]);
    fails(2, &["--record-bytes", "7"]);
    fails(2, &["--preset", "vpic", "--record-bytes", "7"]);
    fails(13, &["--preset", "vpic"]);
    esker.fails(3, ["ls", "bad:/"]);
}

/// Six steps of a real simulation, where the shared folder is here.
#[test]
fn dumps_of_a_real_simulation_are_traced_through_time() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vpic");
    let Ok(entries) = folder.read_dir() else {
        eprintln!("skipped: no dumps of a simulation in {}", folder.display());
        return;
    };
    let esker = Esker::new();
    let mut words: Vec<String> =
        ["imd", "import", "run:/tracers", "--preset", "vpic", "--ranks", "4"]
            .map(Into::into)
            .into();
    words.extend(entries.filter_map(|entry| {
        let path = entry.expect("an entry").path().to_str().expect("text").to_owned();
        (!path.ends_with(".md")).then_some(path)
    }));
    let made = one(esker.json(words.iter().map(String::as_str)));
    assert_eq!((&made["records"], &made["epochs"]), (&(6 * 16_384).into(), &6.into()));
    let got = esker.ok(["imd", "get", "run:/tracers", "0000000000000001", "0000000000004000"]);
    assert_eq!(got.lines().count(), 1 + 2 * 6);
    // The weight at the end of a record is the tracer's number.
    let weight = (16_384.0 * 2_f32.powi(-100)).to_le_bytes().map(|byte| format!("{byte:02x}"));
    assert!(got.lines().skip(7).all(|line| line.ends_with(&weight.concat())), "{got}");
}

// SPDX-License-Identifier: Apache-2.0
//! Imports of dumps of fixed-width records, as users run them.

use serde_json::Value;

use crate::esker::Esker;

/// The only object that a command printed.
pub fn one(mut printed: Vec<Value>) -> Value {
    assert_eq!(printed.len(), 1, "{printed:?}");
    printed.remove(0)
}

/// Writes a dump like a simulation's: a header with the step, then records of a key and five more
/// bytes.
pub fn dump(esker: &Esker, name: &str, step: u32, keys: std::ops::Range<u16>) -> String {
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
    let value = esker.run(["cat", "run:/p/10"]).stdout;
    assert_eq!(value, b"\0\nvalue\0\nvalue");
    assert_eq!(esker.run(["cat", "run:/p/99"]).stdout, b"\0cvalue");
    let got = one(esker.json(["imd", "get", "run:/p", "99"]));
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

/// Symptom: `imd get run:/p 12345678` was refused or looked up other bytes, values were hexadecimal
/// digits, and epochs had lost their steps.
/// Cause: a directory recorded only the lengths of its records.
/// Fix: it has a schema and the step of each epoch; keys are parsed and columns printed
/// accordingly.
#[test]
fn keys_values_and_epochs_are_read_as_what_they_are() {
    let esker = Esker::new();
    let files = [dump(&esker, "first", 300, 0..40), dump(&esker, "second", 700, 10..50)];
    let layout = ["--header-bytes", "8", "--record-bytes", "7", "--step", "4:u32"];
    let fields = ["--key", "id=0:u16be", "--field", "id2=0:u16be", "--field", "tag=3:i8:mm/s"];
    let words = ["imd", "import", "run:/p", "--rank-memory", "4M", "--format", "ordered"];
    let files = [files[0].as_str(), files[1].as_str()];
    esker.ok([&words[..], &layout, &fields, &files].concat());

    // An empty variable in a script is no success.
    assert!(esker.fails(2, ["imd", "get", "run:/p"]).contains("KEY"));
    assert!(esker.ok(["imd", "show", "--help"]).contains("Usage: esker imd show"));

    let a = i32::from(b'a');
    let csv = esker.ok(["imd", "get", "run:/p", "12", "45"]);
    let expected =
        format!("id,epoch,step,id2,tag\n12,0,300,12,{a}\n12,1,700,12,{a}\n45,1,700,45,{a}\n");
    assert_eq!(csv, expected);
    let later = one(esker.json(["imd", "get", "run:/p", "12", "--steps", "301..800"]));
    let fields = serde_json::json!({"id2": 12, "tag": a});
    let value = serde_json::json!({"key": "12", "epoch": 1, "step": 700, "fields": fields});
    assert_eq!(later["values"], serde_json::json!([value]));
    let said = esker.fails(3, ["imd", "get", "run:/p", "12", "--steps", "301"]);
    assert!(said.contains("its 2 epochs are of steps 300 to 700"), "{said}");
    let said = esker.fails(3, ["imd", "get", "run:/p", "50"]);
    assert!(said.contains("run:/p: no value has the key 50"), "{said}");
    let said = esker.fails(13, ["imd", "get", "run:/p", "70000"]);
    assert!(said.contains("numbers of type u16be"), "{said}");

    let hex = esker.ok(["imd", "get", "run:/p", "--hex", "000000000000002d"]);
    assert_eq!(hex, "id,epoch,step,value\n000000000000002d,1,700,002d76616c7565\n");
    let bytes =
        esker.run(["imd", "get", "run:/p", "--bytes", "\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}"]);
    assert_eq!(bytes.status.code(), Some(3));
    let range = esker.ok(["imd", "range", "run:/p", "9", "11", "--steps", "700"]);
    assert_eq!(
        range.lines().skip(1).map(|line| &line[..9]).collect::<Vec<_>>(),
        ["10,1,700,", "11,1,700,"]
    );
    assert_eq!(esker.ok(["ls", "run:/p"]).lines().next(), Some("0"));

    esker.ok(["imd", "get", "run:/p", "45", "--output", "npy", "--to", "out.npy"]);
    let npy = std::fs::read(esker.path("out.npy")).expect("written");
    let text = String::from_utf8_lossy(&npy).into_owned();
    assert!(text.contains("('id', '<u8')") && text.contains("('tag', '|i1')"), "{text}");

    let shown = one(esker.json(["imd", "show", "run:/p", "--queries", "5"]));
    assert_eq!(shown["steps"], serde_json::json!([300, 700]));
    assert_eq!(shown["schema"]["key"]["type"], "u16be");
    let tag = serde_json::json!({"name": "tag", "type": "i8", "unit": "mm/s", "offset": 3});
    assert_eq!(shown["schema"]["fields"][1], tag);
    let text = esker.ok(["imd", "stat", "run:/p"]);
    assert!(text.contains("field        tag: i8 at byte 3, in mm/s"), "{text}");
    assert!(text.contains("epochs       2, of steps 300 to 700"), "{text}");
}

/// Symptom: in the help's example for `--bytes` the digits of a numeric key were taken for the key's
/// bytes, and the error was that no value has the key. A negative key was taken for an option. An
/// absent epoch was an invalid request if given by step, and an absent key if given by number.
/// Fix: errors say how the keys were read, and name the alternatives.
#[test]
fn errors_say_how_keys_and_epochs_were_read() {
    let esker = Esker::new();
    let records: Vec<u8> = (-3_i64..3).flat_map(i64::to_le_bytes).collect();
    std::fs::write(esker.path("dump"), records).expect("a dump");
    let layout = ["--record-bytes", "8", "--key", "id=0:i64", "--format", "ordered"];
    let words = [&["imd", "import", "run:/p", "--rank-memory", "4M"][..], &layout, &["dump"]];
    esker.ok(words.concat());
    let get = |more: &[&'static str]| [&["imd", "get", "run:/p"][..], more].concat();
    assert!(esker.ok(get(&["-3"])).ends_with("-3,0,0,fdffffffffffffff\n"));
    assert_eq!(esker.ok(["imd", "range", "run:/p", "-2", "1"]).lines().count(), 1 + 4);

    let number = "numbers of type i64, or 0x and 16 digits";
    for (code, words, parts) in [
        (3, &["77"][..], &["no value has the key 77", "keys are read as", number, "--hex"][..]),
        (3, &["12345678", "--bytes"], &["with --bytes", "the bytes that they are", number]),
        (13, &["77", "--bytes"], &["77 is no key", "with --bytes", number, "with --hex"]),
        (13, &["77", "--hex"], &["77 is no key", "with --hex", number]),
        (13, &["x"], &[number]),
        (3, &["1", "--steps", "9"], &["run:/p: no epoch of step 9: its only epoch is of step 0"]),
        (3, &["1", "--epochs", "4..6"], &["run:/p: no epoch 4: its only epoch is 0"]),
        (2, &["1", "--steps", "3..1"], &["3..1", "from A to below B"]),
        (2, &["1", "--epochs", "3..3"], &["3..3", "from A to below B"]),
    ] {
        let said = esker.fails(code, get(words));
        assert!(parts.iter().all(|part| said.contains(part)), "{words:?}: {said}");
    }
    for words in [
        ["imd", "get", "run:/", "1"],
        ["imd", "show", "run:/", "--queries=1"],
        ["imd", "range", "run:/", "1"],
    ] {
        let words = words.into_iter().chain((words[1] == "range").then_some("2"));
        assert!(esker.fails(5, words).contains("no indexed directory"));
    }
    // Commands of the help.
    let help = esker.ok(["imd", "get", "--help"]);
    let numbers = help.lines().filter(|line| line.contains("12345678") && line.contains("--bytes"));
    assert_eq!(numbers.count(), 0, "{help}");
    assert_eq!(esker.run(["cat", "run:/p/-3"]).stdout, (-3_i64).to_le_bytes());
}

/// Symptom: an import with a wrong header or width failed with "bytes are not what was written".
/// Cause and fix: see `esker_imd`'s import; this test checks that nothing has been written by then.
#[test]
fn a_wrong_layout_is_refused_before_anything_is_written() {
    let esker = Esker::without_store();
    let file = dump(&esker, "dump", 5, 0..50);
    let refused = |words: &[&str], what: &str| {
        let words = [&["imd", "import", "run:/p"][..], words, &[file.as_str()]].concat();
        let said = esker.fails(13, words);
        assert!(said.contains(what) && said.contains("check the layout"), "{said}");
        assert!(!esker.store().exists(), "a store was made");
    };
    let header = ["--header-bytes", "9", "--record-bytes", "7", "--key", "0:u8"];
    refused(&header, "349 bytes behind the header are not whole records of 7 bytes: 6 are left");
    let step = ["--header-bytes", "8", "--record-bytes", "7", "--key", "0:u8", "--step", "0:u64be"];
    refused(&step, "its step, 0:u64be of its header, would be 7522525834800791552");
    let width = ["--header-bytes", "8", "--record-bytes", "14", "--key", "1:f32*2^9"];
    refused(&width, "is not a number that is an integer once scaled");
}

/// Six steps of a real simulation, if the shared folder is present.
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
    let got = esker.ok(["imd", "get", "run:/tracers", "1", "16384"]);
    assert_eq!(got.lines().count(), 1 + 2 * 6);
    assert!(got.starts_with("tracer,epoch,step,dx,dy,dz,i,ux,uy,uz,w\n1,0,0,"), "{got}");
    // The weight at the end of a record encodes the tracer's number.
    let weight = format!(",{}", 16_384.0 * 2_f32.powi(-100));
    assert!(got.lines().skip(7).all(|line| line.ends_with(&weight)), "{got}");
    let hex =
        esker.ok(["imd", "get", "run:/tracers", "0000000000004000", "--hex", "--steps", "300"]);
    let weight = (16_384.0 * 2_f32.powi(-100)).to_le_bytes().map(|byte| format!("{byte:02x}"));
    let line = hex.lines().nth(1).expect("a record");
    assert!(
        line.starts_with("0000000000004000,3,300,") && line.ends_with(&weight.concat()),
        "{hex}"
    );
}
